"""`yamchi plugins`: the features of an application, and what each of them brings."""

from typing import Any

from yamchi.app import Yamchi
from yamchi.cli.loading import load_app
from yamchi.console.loading import AppOption, JsonOption
from yamchi.console.output import console, print_json, print_table, table, text
from yamchi.plugins import Plugin
from yamchi.settings import variable_of

PARTS = ("queues", "services", "commands", "settings", "routes", "pages", "needs")


def run(app: AppOption = None, as_json: JsonOption = False) -> None:
    """The features of an application with what each brings, and those that could not be loaded, with why.

    Example: [cyan]yamchi plugins --app mymodule:app[/]
    """
    loaded = load_app(app)
    loaded.serve()
    found = [_describe(loaded, plugin) for plugin in loaded.plugins.values()]
    if as_json:
        failed = [{"name": name, "failed": why} for name, why in loaded.failed_plugins.items()]
        print_json([*found, *failed])
        return
    for one in found:
        console.print(f"[bold green]{text(one['name'])}[/]  {text(one['summary'], 200)}")
        shown = table("", "")
        for part in PARTS:
            if one[part]:
                shown.add_row(f"[dim]{part}[/]", text(", ".join(one[part]), 2_000))
        print_table(shown)
    for name, why in loaded.failed_plugins.items():
        console.print(f"[bold red]{text(name)}[/]  left out: {text(why, 400)}")


def _describe(app: Yamchi, plugin: Plugin) -> dict[str, Any]:
    routes = app.brought(lambda one: one.routers(), [plugin])
    settings = plugin.settings_class.model_fields if plugin.settings_class else {}
    return {
        "name": plugin.name,
        "summary": plugin.summary,
        "queues": app.queues_of(plugin.name),
        "services": app.services_of(plugin.name),
        "commands": list(plugin.commands),
        "settings": [variable_of(name, field) for name, field in settings.items()],
        "routes": sorted({f"{one.prefix or '/'} ({one.access})" for one in routes}),
        "pages": [page.title for page in app.brought(lambda one: one.pages(), [plugin])],
        "needs": list(plugin.requires),
    }
