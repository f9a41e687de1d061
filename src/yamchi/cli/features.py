"""The commands of features: found by name, imported when they are used."""

from typing import Any

import typer

from yamchi.cli.loading import load_app
from yamchi.plugins import find_plugins, load_attribute
from yamchi.settings import Settings


def commands_of_features(reference: str | None = None) -> dict[str, str]:
    """Where each command is: of the plugins of an application, or of all that ship and are installed."""
    if reference is None:
        kinds = find_plugins(Settings()).classes
    else:
        kinds = [type(plugin) for plugin in load_app(reference).plugins.values()]
    return {name: place for kind in kinds for name, place in kind.commands.items()}


def load_command(name: str, place: str) -> Any:
    """A group of commands, or a function that is one."""
    found = load_attribute(place)
    holder = typer.Typer(rich_markup_mode="rich", add_completion=False)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
        group: Any = typer.main.get_command(holder)
        return group.commands[name]
    holder.command(name=name)(found)
    return typer.main.get_command(holder)
