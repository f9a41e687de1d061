"""All settings, of the core and of the features that ship, as an `.env` file: `make .env.example` keeps the output."""

import sys
import textwrap
from datetime import timedelta

from pydantic.fields import FieldInfo

from yamchi.plugins import shipped_plugins
from yamchi.settings import Environment, Settings, variable_of

UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))


def env_example() -> str:
    """All variables as an `.env` file in which each stands as a comment, at its default."""
    heading = "Yamchi's settings: copy this to .env and uncomment what you change. Made by make .env.example"
    features = [(kind.name, kind.settings_class) for kind in shipped_plugins() if kind.settings_class]
    blocks = [_comment(heading)]
    known: set[str] = set()
    titled: list[tuple[str, type[Environment]]] = [("queues, workers and the server", Settings), *features]
    for title, settings in titled:
        fields = {name: field for name, field in settings.model_fields.items() if name not in known}
        blocks += [f"# ──── {title} ────", *(_block(name, field) for name, field in fields.items())]
        known |= fields.keys()
    return "\n\n".join(blocks) + "\n"


def all_settings() -> list[type[Environment]]:
    """The classes of settings: the core's first, then those of the features that ship."""
    features = [kind.settings_class for kind in shipped_plugins() if kind.settings_class]
    return [Settings, *features]


def _block(name: str, field: FieldInfo) -> str:
    return f"{_comment(field.description or '')}\n# {variable_of(name, field)}={_default(field)}"


def _comment(text: str) -> str:
    return textwrap.fill(text, 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _default(field: FieldInfo) -> str:
    match field.default:
        case timedelta() as span:
            seconds = span.total_seconds()
            unit, size = next(((unit, size) for unit, size in UNITS if not seconds % size), ("s", 1))
            return f"{seconds / size:g}{unit}"
        case None | () | {}:
            return ""
        case tuple() as several:
            return ",".join(several)
        case value:
            return str(value)


if __name__ == "__main__":
    sys.stdout.write(env_example())
