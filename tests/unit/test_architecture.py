"""Rules of the house that no linter knows; the direction of imports is checked by `lint-imports`."""

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAYS_IN = ["yamchi", "yamchi.app", "yamchi.cli", "yamchi.web", "yamchi.testing"]
MODULES_OF_EXTRAS = {
    "redis",
    "bullmq",
    "msgpack",
    "psycopg",
    "psycopg_pool",
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


def test_a_thing_lives_in_the_room_that_its_name_says():
    nameless = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [path for path in (ROOT / "src").rglob("*") if path.stem in nameless] == []


def test_every_dependency_is_bounded_and_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (need for needs in project["optional-dependencies"].values() for need in needs)
    needs = [need for need in (*project["dependencies"], *extras) if not need.startswith("yamchi[")]
    pinned = {_normal(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert [need for need in needs if ">=" not in need or "<" not in need] == []
    assert [need for need in needs if _normal(need.split(">=")[0].split("[")[0]) not in pinned] == []


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")
