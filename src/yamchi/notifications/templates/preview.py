"""See a message before anybody gets it: rendered with its own sample data, or with yours."""

from collections.abc import Mapping
from typing import Any

from yamchi.notifications.templates.model import (
    Rendered,
    Template,
    TemplateError,
    TemplateStore,
    find_template,
)
from yamchi.notifications.templates.rehearsing import rehearse


async def preview(
    store: TemplateStore,
    code: str,
    channel: str,
    locale: str,
    data: Mapping[str, Any] | None = None,
    **variables: Any,
) -> Rendered:
    """The message in this language (or the next one that has it)."""
    template = await find_template(store, code, channel, locale)
    return await rehearse(template, sample_of(template) if data is None else data, **variables)


def sample_of(template: Template) -> Mapping[str, Any]:
    if template.sample is None:
        raise TemplateError(
            f"Template {template} has no sample data: add `sample:` to its settings, or give data."
        )
    return template.sample
