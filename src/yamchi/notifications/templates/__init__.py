"""What a notification says: templates in files or a table, by channel and language, rendered where they can do no harm.

    store = FileTemplates([home / "templates"])                       # the user's folder first, then what ships
    template = await store.find("welcome_email", "email", locale_chain("kk"))
    rendered = render(template, {"first_name": "Айдана"}, timezone="Asia/Almaty")

A template is one text: settings between two `---` lines (subject, buttons, sample data …), then the body in Jinja2.
"""

from yamchi.notifications.templates.files import SHIPPED, FileTemplates
from yamchi.notifications.templates.lint import Finding, lint
from yamchi.notifications.templates.locales import locale_chain
from yamchi.notifications.templates.model import (
    Button,
    Layout,
    Rendered,
    Template,
    TemplateError,
    TemplateStore,
    UnknownTemplate,
)
from yamchi.notifications.templates.preview import preview
from yamchi.notifications.templates.reading import read_template
from yamchi.notifications.templates.rendering import render

__all__ = [
    "SHIPPED",
    "Button",
    "FileTemplates",
    "Finding",
    "Layout",
    "Rendered",
    "Template",
    "TemplateError",
    "TemplateStore",
    "UnknownTemplate",
    "lint",
    "locale_chain",
    "preview",
    "read_template",
    "render",
]
