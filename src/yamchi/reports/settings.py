"""The settings of reports: where they are kept, and for how long."""

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

from yamchi.settings import FeatureSettings, Span, check_positive


class ReportSettings(FeatureSettings):
    """How long a report is kept and linked."""

    report_keep: Annotated[Span, AfterValidator(check_positive)] = Field(
        default=timedelta(days=30), description="How long a report is kept; then its file is deleted."
    )
    report_link_lifetime: Annotated[Span, AfterValidator(check_positive)] = Field(
        default=timedelta(days=7), description="How long the link in a letter opens a report."
    )
