"""All settings, of the core and of the features that ship, as an `.env` file: `make .env.example` keeps the output."""

import sys
import textwrap
from datetime import timedelta

from pydantic.fields import FieldInfo

from yamchi.plugins import shipped_plugins
from yamchi.settings import Environment, Settings, variable_of


def env_example() -> str:
    """All variables as an `.env` file in which each stands as a comment, at its default."""
    heading = "Yamchi's settings: copy this to .env and uncomment what you change. Made by make .env.example"
    fields: dict[str, FieldInfo] = {}
    for kind in all_settings():
        fields |= {name: field for name, field in kind.model_fields.items() if name not in fields}
    blocks = [_block(name, field) for name, field in fields.items()]
    return "\n\n".join([_comment(heading), *blocks]) + "\n"


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
            return f"{span.days}d" if span.days and not span.seconds else f"{span.total_seconds():g}s"
        case None | () | {}:
            return ""
        case tuple() as several:
            return ",".join(several)
        case value:
            return str(value)


if __name__ == "__main__":
    sys.stdout.write(env_example())
