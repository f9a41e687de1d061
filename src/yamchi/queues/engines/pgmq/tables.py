"""Which tables of pgmq hold a queue of Yamchi, and the SQL that speaks of them. `yamchi.queues` remembers whose a name is."""

import re
from dataclasses import dataclass
from functools import lru_cache

_NAME = re.compile(r"%\((\w+)\)s")


@dataclass(frozen=True, slots=True)
class Tables:
    """Where a queue lives: `queue` is our name of it, `name` is pgmq's."""

    queue: str
    name: str
    sequence: str

    @property
    def main(self) -> str:
        return f"pgmq.q_{self.name}"

    @property
    def dead(self) -> str:
        return f"pgmq.q_{self.name}_dlq"

    def numbered(self, template: str) -> tuple[bytes, tuple[str, ...]]:
        """The same with `$1`, `$2` in place of names, and the names in that order."""
        return _number(_fill(template, self))

    def sql(self, template: str) -> str:
        """The statement for this queue: `{q}` is its table, `{dlq}` its dead letters, `{seq}` its numbers, `{table}` its table's bare name."""
        return _fill(template, self)


@lru_cache(maxsize=4_096)
def _fill(template: str, tables: Tables) -> str:
    return (
        template.replace("{q}", tables.main)
        .replace("{dlq}", tables.dead)
        .replace("{seq}", f"'{tables.sequence}'")
        .replace("{table}", f"'q_{tables.name}'")
    )


@lru_cache(maxsize=4_096)
def _number(statement: str) -> tuple[bytes, tuple[str, ...]]:
    names = tuple(dict.fromkeys(_NAME.findall(statement)))
    return _NAME.sub(lambda found: f"${names.index(found[1]) + 1}", statement).encode(), names
