"""A message made while somebody can still correct its data: if variables are missing, all of them are named at once.

Rendering stops at the first one. The others are read from the template: those that it uses whatever its data is.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import nodes
from jinja2.meta import find_undeclared_variables

from yamchi.notifications.templates.letters import TEXT
from yamchi.notifications.templates.model import MissingVariable, Rendered, Template
from yamchi.notifications.templates.offloop import in_thread, render_message
from yamchi.notifications.templates.rendering import GIVEN, snake, sources_of

OPTIONAL = frozenset({"default", "d", "defined", "undefined"})
"""Filters and tests that a missing variable passes."""


async def rehearse(template: Template, data: Mapping[str, Any], **options: Any) -> Rendered:
    """`render_message`, whose error names every variable that is certainly missing."""
    try:
        return await render_message(template, data, **options)
    except MissingVariable as error:
        others = [name for name in await in_thread(lacking, template, data) if repr(name) not in str(error)]
        if not others:
            raise
        raise MissingVariable(f"{error} Missing, too: {', '.join(map(repr, others))}.") from None


def lacking(template: Template, data: Mapping[str, Any]) -> list[str]:
    """The variables that a template which compiles uses whatever its data is, and that this data does not have."""
    try:
        needed = {name for source in sources_of(template) for name in _needed(source)}
    except RecursionError:  # too deep to be gone through: the one that rendering met must do
        return []
    return sorted(needed - GIVEN - set(TEXT.globals) - {*data, *map(snake, data)})


def _needed(source: str) -> set[str]:
    tree = TEXT.parse(source)
    return find_undeclared_variables(tree).intersection(_used(tree))


def _used(node: nodes.Node) -> Iterator[str]:
    """The names that are looked up whichever way the template goes."""
    if isinstance(node, nodes.Name) and node.ctx == "load":
        yield node.name
    for part in _certain(node):
        yield from _used(part)


def _certain(node: nodes.Node) -> list[nodes.Node]:
    """The parts of a node that are always worked out."""
    match node:
        case nodes.If() | nodes.CondExpr():
            return [node.test]
        case nodes.For():
            return [node.iter]
        case nodes.And() | nodes.Or():
            return [node.left]
        case nodes.Compare():
            return [node.expr, node.ops[0]]
        case nodes.Macro():
            return []
        case nodes.CallBlock():
            return [node.call]
        case nodes.Filter() | nodes.Test() if node.name in OPTIONAL and isinstance(node.node, nodes.Name):
            return list(node.args)
        case _:
            return list(node.iter_child_nodes())
