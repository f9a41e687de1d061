"""The settings of reports: where they are kept, and for how long."""

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

from yamchi.settingtypes import Span, check_positive
from yamchi.storage.bucket import BucketSettings


class ReportSettings(BucketSettings):
    """Where a report is kept, how long, and for how long it is linked."""

    report_keep: Annotated[Span, AfterValidator(check_positive)] = Field(
        default=timedelta(days=30), description="How long a report is kept; then its file is deleted."
    )
    report_link_lifetime: Annotated[Span, AfterValidator(check_positive)] = Field(
        default=timedelta(days=7), description="How long the link in a letter opens a report."
    )
    report_bucket: str | None = Field(
        default=None,
        description="The private bucket that reports are kept in, so that every machine has them; in var/reports by default.",
    )
