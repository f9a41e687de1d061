"""Rules that no linter knows; the direction of imports is checked by `lint-imports`."""

import ast
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "yamchi"
FEATURES = {"notifications", "media", "scenarios", "leads", "reports", "payments"}
WAYS_IN = ["yamchi", "yamchi.app", "yamchi.cli", "yamchi.web", "yamchi.testing"]
MODULES_OF_EXTRAS = {
    "hiredis",
    "bullmq",
    "msgpack",
    "psycopg",
    "pgmq",
    "confluent_kafka",
    "httpx2",
}

IMPORT_WITHOUT_EXTRAS = """
import importlib, sys
for extra in {extras}:
    sys.modules[extra] = None  # makes `import` raise, as if the package were not installed
importlib.import_module({module!r})
"""


@pytest.mark.parametrize("module", [name for name in WAYS_IN if find_spec(name)])
def test_the_embedded_default_needs_no_extra(module):
    program = IMPORT_WITHOUT_EXTRAS.format(extras=MODULES_OF_EXTRAS, module=module)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_thing_lives_in_the_folder_that_its_name_says():
    nameless = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [path for path in (ROOT / "src").rglob("*") if path.stem in nameless] == []


def test_every_dependency_is_bounded_and_pinned():
    file = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = (*file["project"]["optional-dependencies"].values(), *file["dependency-groups"].values())
    needs = [*file["project"]["dependencies"], *(need for needs in lists for need in needs)]
    needs = [need for need in needs if not need.startswith("yamchi[")]
    pinned = {_normal(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert [need for need in needs if ">=" not in need or "<" not in need] == []
    assert [need for need in needs if _normal(need.split(">=")[0].split("[")[0]) not in pinned] == []


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def test_only_queues_touch_an_engine():
    """Others ask a `Queue`; the import of engines is guarded by `lint-imports`, their use by this."""
    own = {SOURCE / "queues", SOURCE / "testing"}
    touching = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        if not own & set(path.parents)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "engine" and _is_queue(node.value)
    ]
    assert touching == []


def _is_queue(value: ast.expr) -> bool:
    """Whether an expression reads as a queue: queue, self._queue, view.queue, app.queue("mail")."""
    inner = value.func if isinstance(value, ast.Call) else value
    name = inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")
    return name.endswith("queue")


def test_the_modules_import_each_other_in_no_circle():
    """Imports inside functions and under TYPE_CHECKING count: who reads a module must be able to read its imports first."""
    imports = {module: _imports(path, MODULES) for module, path in MODULES.items()}
    while free := [module for module, needs in imports.items() if not needs & imports.keys()]:
        for module in free:
            del imports[module]
    circles = {module: sorted(needs & imports.keys()) for module, needs in imports.items()}
    assert circles == {}


def test_no_central_module_names_a_feature():
    """What a feature brings comes through its plugin; the table of what ships is the only place with its name."""
    features = {f"yamchi.{name}" for name in FEATURES}
    central = [path for path in MODULES.values() if path.relative_to(SOURCE).parts[0] not in FEATURES]
    naming = {
        f"{path.relative_to(SOURCE)}: {module}"
        for path in central
        for module in _imports(path, MODULES)
        if any(module == feature or module.startswith(f"{feature}.") for feature in features)
    }
    assert naming == set()


def _imports(path: Path, known: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name if name in known else node.module for name in inner}
    return {name for name in found if name in known}


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module(path): path for path in SOURCE.rglob("*.py") if "migrations" not in path.parts}
