"""A template's syntax tree before it becomes code: what is not allowed is refused with its line, the rest is metered.

Every loop, literal, comparison and joining of texts is put through a filter that pays the `Meter`. The names of those
filters end in `!`, so no template can write them; nor can it pass them to `map`, which the sandbox sees to.
"""

from collections.abc import Iterable
from typing import Any

from jinja2 import nodes
from jinja2.environment import Environment
from jinja2.exceptions import TemplateSyntaxError
from jinja2.visitor import NodeTransformer

LOOP, LITERAL, JOIN, REPEAT = "loop!", "literal!", "join!", "repeat!"
SLICE, COMPARE = "slice!", "compare!"
OURS_ONLY = "!"

_REFUSED: dict[type[nodes.Node], str] = {
    nodes.Include: "{% include %} is not available: a template is one text",
    nodes.Import: "{% import %} is not available: a template is one text",
    nodes.FromImport: "{% from … import %} is not available: a template is one text",
    nodes.Extends: "{% extends %} is not available: e-mails get their layout by themselves",
    nodes.Block: "{% block %} is not available: e-mails get their layout by themselves",
    nodes.ScopedEvalContextModifier: "{% autoescape %} is not available: use |safe for a value that is HTML",
}


class Rewriter(NodeTransformer):
    """Refuses and meters; used once per template."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        if reason := _REFUSED.get(type(node)):
            raise TemplateSyntaxError(reason, node.lineno)
        return super().generic_visit(node, *args, **kwargs)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        return self._known(node, "filter", self._environment.filters)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        return self._known(node, "test", self._environment.tests)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        if node.recursive:
            raise TemplateSyntaxError("recursive loops are not available", node.lineno)
        written = _written(node.body)
        self.generic_visit(node)
        node.iter = _metered(node.iter, LOOP, nodes.Const(written))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._repeated(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._repeated(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _metered(nodes.Tuple(node.nodes, "load", lineno=node.lineno), JOIN)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _compared(node.expr)
        for operand in node.ops:
            operand.expr = _compared(operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _metered(node, SLICE) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._literal(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._literal(node) if node.ctx == "load" else node

    def _literal(self, node: nodes.Expr) -> nodes.Node:
        if all(isinstance(child, nodes.Const) for child in node.iter_child_nodes()):
            return node
        self.generic_visit(node)
        return _metered(node, LITERAL)

    def _repeated(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:
        """A body that may be written many times pays for its text each time."""
        written = _written(node.body)
        self.generic_visit(node)
        pay = nodes.ExprStmt(_metered(nodes.Const(written, lineno=node.lineno), REPEAT), lineno=node.lineno)
        node.body.insert(0, pay)
        return node

    def _known(self, node: nodes.Filter | nodes.Test, kind: str, known: Iterable[str]) -> nodes.Node:
        if node.name not in known:
            raise TemplateSyntaxError(f"there is no {kind} named {node.name!r}", node.lineno)
        return self.generic_visit(node)


def _metered(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [*args], [], None, None, lineno=node.lineno)


def _compared(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _metered(node, COMPARE)


def _written(body: Iterable[nodes.Node]) -> int:
    """How many characters of fixed text one round through this body may write."""
    return sum(len(data.data) for node in body for data in _texts(node))


def _texts(node: nodes.Node) -> Iterable[nodes.TemplateData]:
    return [node] if isinstance(node, nodes.TemplateData) else node.find_all(nodes.TemplateData)
