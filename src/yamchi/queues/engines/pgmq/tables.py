"""Names: which tables of pgmq hold a queue of Yamchi, and the SQL that speaks of them.

pgmq's names are letters, digits and `_` here, so that SQL needs no quotes: `email_queue` stays `email_queue`,
`media-processing` is `media_processing`, `emailChain` is `emailchain`. `yamchi.queues` remembers whose a name is.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

LONGEST = 43
"""pgmq allows 47 characters; four are for `_dlq`."""


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


def pgmq_name(queue: str) -> str:
    """The name pgmq knows a queue by, unless another queue has it already."""
    plain = re.sub(r"[^a-z0-9_]", "_", queue.lower())
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[: LONGEST - 9]}_{_mark(queue)}"


def second_name(queue: str) -> str:
    """For a queue whose first name belongs to another queue."""
    plain = re.sub(r"[^a-z0-9_]", "_", queue.lower())
    return f"{plain[: LONGEST - 9]}_{_mark(queue)}"


def _mark(queue: str) -> str:
    return sha256(queue.encode()).hexdigest()[:8]
