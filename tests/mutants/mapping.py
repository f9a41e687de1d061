"""Which tests matter for a file: those that come nearest to it by their imports, and the suite of an engine for its own files."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SUITES = {
    "engines/bull": ["tests/conformance/test_bull.py"],
    "engines/pgmq": ["tests/conformance/test_pgmq.py"],
    "engines/kafka": ["tests/conformance/test_kafka.py"],
    "engines/supabase": ["tests/conformance/test_supabase.py"],
    "engines/sqlite": ["tests/conformance/test_sqlite.py", "tests/unit/test_spool.py"],
    "engines/memory": ["tests/conformance/test_memory.py", "tests/unit/test_spool.py"],
    "queues/failover": ["tests/unit/test_failover.py", "tests/unit/test_spool.py"],
    "queues/cron": ["tests/unit/test_two_engines.py", "tests/unit/test_properties.py"],
    "queues/queue": ["tests/unit/test_unattended.py", "tests/unit/test_testing.py"],
    "queues/runner": ["tests/unit/test_edges.py", "tests/unit/test_unsettled.py"],
    "queues/running": ["tests/unit/test_unsettled.py"],
    "queues/bulkheads": ["tests/unit/test_bulkheads.py"],
    "queues/timeouts": ["tests/unit/test_timeouts.py"],
    "queues/lazy": ["tests/unit/test_lazy_engine.py"],
    "queues/engines/perloop": ["tests/unit/test_lazy_engine.py"],
    "storage/batching": ["tests/unit/test_batching.py"],
    "queues/leases": ["tests/unit/test_edges.py", "tests/unit/test_two_engines.py"],
    "queues/probes": ["tests/unit/test_edges.py"],
    "queues/engines/base": ["tests/unit/test_edges.py"],
    "storage/sqlite": ["tests/unit/test_edges.py", "tests/unit/test_storage_sqlite.py"],
    "storage/sweeping": ["tests/unit/test_edges.py", "tests/unit/test_pgmq_bounds.py"],
    "queues/": ["tests/conformance/test_memory.py", "tests/unit/test_lifecycle_worker.py"],
    "notifications/": ["tests/notifications/test_pipeline.py"],
}
"""What an import does not tell: whose contract a file keeps."""

BROKERS = ("bull", "pgmq", "kafka", "supabase")
LEFT_OUT = ("tests/faults", "tests/interop", "tests/browser", "tests/services", "tests/mutants")
"""Slow ones, which the whole suite has."""

COMMON = {"test", "src", "yamchi", "queues", "notifications", "engines", "storage", "init", "py"}
"""Words in a path that say nothing of what a file is about."""


def needs_servers(path: str) -> bool:
    """Whether only a real broker can tell what a fault in this file does."""
    return any(broker in path for broker in BROKERS)


def find_tests(root: Path, path: str, limit: int = 5) -> list[str]:
    """The test files that matter for this one: the suite whose contract it keeps, then by name, then by imports."""
    imports = {module: _imports(file) for module, file in _modules(root / "src")}
    near = _distances(imports, _module(root / "src", root / path))
    found: list[tuple[int, int, str]] = []
    for test in sorted((root / "tests").rglob("test_*.py")):
        name = test.relative_to(root).as_posix()
        if name.startswith(LEFT_OUT) or (needs_servers(name) and not needs_servers(path)):
            continue
        kin = len(_words(name) & _words(path))
        steps = min((near[module] for module in _imports(test) if module in near), default=99)
        if kin or steps <= 2:
            found.append((-kin, steps, name))
    named = [suite for part, suites in SUITES.items() if part in path for suite in suites]
    suites = [suite for suite in named if (root / suite).is_file()]
    return list(dict.fromkeys([*suites, *(name for _, _, name in sorted(found))]))[:limit]


def _words(path: str) -> set[str]:
    """What a path is about; a plural is the same word."""
    words = path.replace(".py", "").replace("/", "_").split("_")
    return {word.rstrip("s") for word in words} - COMMON - {word.rstrip("s") for word in COMMON}


def _distances(imports: dict[str, frozenset[str]], target: str) -> dict[str, int]:
    """How many imports lead from each module to the target."""
    near, edge = {target: 0}, {target}
    while edge:
        edge = {module for module, its in imports.items() if module not in near and its & edge}
        near |= dict.fromkeys(edge, max(near.values()) + 1)
    return near


def _modules(source: Path) -> Iterator[tuple[str, Path]]:
    return ((_module(source, file), file) for file in source.rglob("*.py"))


def _module(source: Path, file: Path) -> str:
    parts = file.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _imports(file: Path) -> frozenset[str]:
    return frozenset(_imported(file))


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
