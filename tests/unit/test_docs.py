"""The documentation tells the truth: links lead somewhere, code runs, settings exist, tables match the code."""

import ast
import asyncio
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from yamchi import Yamchi
from yamchi.envfile import env_example
from yamchi.notifications.people.recipients import User
from yamchi.notifications.schemas.event import Event
from yamchi.queues.engines.base import Capabilities
from yamchi.queues.engines.bull import BullEngine
from yamchi.queues.engines.kafka import KafkaEngine
from yamchi.queues.engines.memory import MemoryEngine
from yamchi.queues.engines.pgmq import PgmqEngine
from yamchi.queues.engines.sqlite import SqliteEngine
from yamchi.queues.engines.supabase import SupabaseEngine
from yamchi.settings import Settings
from yamchi.testing import TestApp
from yamchi.testing.waiting import eventually

USER = "0b5e2f6c-5a0d-4b8e-9c44-3d1c7f1f3a10"
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
RUNNABLE = "<!-- runnable -->"

ENGINES = {
    "SQLite": SqliteEngine,
    "Redis": BullEngine,
    "PostgreSQL": PgmqEngine,
    "Supabase": SupabaseEngine,
    "Kafka": KafkaEngine,
    "memory": MemoryEngine,
}

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(
    rf"^(?P<mark>{RUNNABLE}\n)?(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_VARIABLE = re.compile(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*(?:_<QUEUE>)?)(?:=[^`]*)?`")

NOT_OURS = {
    "CALL_NEEDED",
    "CI",
    "EMAIL_1_SENT",
    "EMAIL_2_SENT",
    "EVALSHA",
    "FAULTS",
    "GRANT",
    "REMINDER_24H_SENT",
    "REMINDER_5H_SENT",
    "RESCHEDULE_REQUESTED",
    "SHEET_REFUSED",
    "SMTP_HSOT",
    "YAMCHI_BIN",
}
"""Words in capitals that are no settings."""


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    text = _FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks() -> Iterator[tuple[str, str, bool]]:
    """Every Python block: where it is, its code, and whether it is to be run."""
    for page in PAGES:
        text = page.read_text()
        for found in _PYTHON.finditer(text):
            line = text.count("\n", 0, found.start("code")) + 1
            yield f"{named(page)}:{line}", textwrap.dedent(found["code"]), bool(found["mark"])


def test_what_users_copy_passes_a_strict_type_check(tmp_path: Path) -> None:
    runnable = [(place, code) for place, code, is_run in blocks() if is_run]
    for place, code in runnable:
        (tmp_path / f"{re.sub(r'[^a-z0-9]+', '_', place.lower())}.py").write_text(code)
    cache = ROOT / ".mypy_cache" / "users"  # users have other options than we
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), "."]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    checked = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout
    assert f"{len(runnable)} source files" in checked.stdout


def test_the_files_of_the_design_are_there() -> None:
    """Every file and folder that the list of folders and the walks of docs/design.md name."""
    text = (ROOT / "docs" / "design.md").read_text()
    (listing,) = re.findall(r"```text\nsrc/yamchi/\n(.*?)```", text, re.DOTALL)
    folders: list[str] = []
    for line in listing.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        first = line.split()[0]
        folders = [*folders[:depth], first.rstrip("/")] if first.endswith("/") else folders[:depth]
        place = ROOT / "src" / "yamchi" / Path(*folders)
        for name in re.findall(r"\b\w+\.py\b", line):
            assert (place / name).exists(), f"docs/design.md names {name} in {place.relative_to(ROOT)}"
        assert place.is_dir(), f"docs/design.md names the folder {place.relative_to(ROOT)}"
    for name in re.findall(r"`((?:queues|storage|engines|notifications)/[\w/.]+)`", text):
        place = ROOT / "src" / "yamchi" / ("queues" if name.startswith("engines/") else "") / name
        assert place.exists(), f"docs/design.md names {name}"


def test_the_walks_of_the_design_name_files_that_are_there() -> None:
    """Each line of a walk is a sentence about a file, or about the page that goes on."""
    text = (ROOT / "docs" / "design.md").read_text()
    (walks,) = re.findall(r"^## Four walks\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^\d+\. (.+)$", walks, re.MULTILINE)
    assert walks.count("**Where") + walks.count("**How") == 4
    for line in lines:
        assert line.endswith("."), line
        named_files = re.findall(r"`([\w/]+\.(?:py|toml))`", line)
        assert named_files or "](" in line, line
        for name in named_files:
            assert (ROOT / "src" / "yamchi" / name).exists() or (ROOT / name).exists(), name


def test_the_words_of_the_glossary_are_in_order_and_used() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert rows == sorted(rows)
    source = " ".join(path.read_text() for path in (ROOT / "src").rglob("*.py")).lower()
    assert [word for word in rows if word.lower() not in source and word.replace("-", "") not in source] == []


def test_the_backup_of_the_documentation_saves_everything(tmp_path: Path) -> None:
    """While another process has both files open, as it stands on the page."""
    (script,) = re.findall(
        r"<!-- backup -->\n```bash\n(.*?)```", (ROOT / "docs/operations.md").read_text(), re.DOTALL
    )

    async def write(home: Path, saved: bool) -> tuple[int, object]:
        async with Yamchi(Settings(home=home)) as app:
            app.define("mail")
            if saved:
                return (await app.queue("mail").stats())["waiting"], await app.notifications.recipients.get(
                    USER
                )
            await app.queue("mail").add("hello")
            await app.notifications.recipients.put(USER, User(email="asel@example.com"))
            await asyncio.to_thread(subprocess.run, ["bash", "-ec", script], cwd=home, check=True)
            return 0, None

    asyncio.run(write(tmp_path / "home", saved=False))
    (tmp_path / "home" / "backup").rename(tmp_path / "var")
    assert not list((tmp_path / "var").glob("*-wal")), "a copy is one file"
    waiting, person = asyncio.run(write(tmp_path, saved=True))
    assert waiting == 1
    assert getattr(person, "email", None) == "asel@example.com"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(_FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{named(page)} links to {target}, which is not there"
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place), f"{named(page)} links to {target}, which has no such heading"


@pytest.mark.parametrize(
    ("where", "code", "_runs"), [pytest.param(*block, id=block[0]) for block in blocks()]
)
def test_code_compiles(where: str, code: str, _runs: bool) -> None:
    compile(code, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(
    ("where", "code"), [pytest.param(where, code, id=where) for where, code, runs in blocks() if runs]
)
def test_runnable_code_runs(where: str, code: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(code)
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{where}\n{ended.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_settings_exist(page: Path) -> None:
    known = set(re.findall(r"^# ([A-Z0-9_]+(?:<QUEUE>)?)=", env_example(), re.MULTILINE))
    prefixes = tuple(name.removesuffix("<QUEUE>") for name in known if name.endswith("<QUEUE>"))
    for variable in _VARIABLE.findall(page.read_text()):
        is_known = variable in known or variable.startswith(prefixes) or variable in NOT_OURS
        assert is_known, f"{named(page)} names {variable}, which Settings does not have"


def test_the_table_of_capabilities_is_true() -> None:
    text = (ROOT / "docs" / "engines.md").read_text()
    table = text.partition("<!-- capabilities -->\n")[2].partition("<!-- /capabilities -->")[0]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    abilities = [name.replace(" ", "_") for name in head[2:]]
    assert abilities == list(Capabilities.__slots__)
    assert {row[0] for row in rows} == set(ENGINES)
    for name, kind, *said in rows:
        engine = ENGINES[name]
        can = ["yes" if getattr(engine.can, ability) else "–" for ability in abilities]
        assert (kind.strip("`"), said) == (engine.type, can), f"docs/engines.md is wrong about {name}"


async def test_the_recipe_of_fastapi_passes_its_own_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = [code for place, code, _ in blocks() if place.startswith("docs/recipes/web-frameworks.md")]
    module: dict[str, Any] = {}
    for code in written:
        if "FastAPI(lifespan" in code or "async def test_" in code:
            exec(code, module)
    await module["test_an_order_is_confirmed"]()


async def test_the_recipe_of_a_scenario_sends_its_letters(tmp_path: Path) -> None:
    recipe = (ROOT / "docs/recipes/own-scenario.md").read_text()
    found = re.search(r"```yaml\n(.+?)```", recipe, re.DOTALL)
    assert found
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios/left_cart.yaml").write_text(found[1])
    data = {"cart_id": "c-1", "total": 9000}
    async with TestApp(home=tmp_path) as app:
        app.notifications.serve()
        await app.notifications.recipients.put(USER, User(email="aya@example.com", locale="en"))
        event = Event(event_type="cart.left", event_id="1", user_id=USER, data=data)
        await app.notifications.service.handle_event(event)
        await app.clock.advance("48h")
        letters = await app.notifications.mailbox.list()
    assert len(letters) == 2
    assert "10% off" in str(letters[0]["subject"])


async def test_a_worker_inside_a_site_logs_as_the_recipe_says(own_home: Path) -> None:
    """The page's site with the page's worker in it, under uvicorn as a user starts it."""
    page = (ROOT / "docs" / "recipes" / "web-frameworks.md").read_text()
    codes = [found["code"] for found in _PYTHON.finditer(page)]
    (site,) = [code for code in codes if "api = FastAPI(" in code]
    (with_worker,) = [code for code in codes if "worker.run()" in code]
    before, after = (
        site.split("@asynccontextmanager\n")[0],
        "api = FastAPI(" + site.split("api = FastAPI(")[1],
    )
    (own_home / "shop.py").write_text(f"{before}\n{with_worker}\n{after}")
    output = own_home / "output.txt"
    command = [sys.executable, "-m", "uvicorn", "shop:api", "--port", "0"]
    with output.open("w") as out:
        running = await asyncio.create_subprocess_exec(*command, cwd=own_home, stdout=out, stderr=out)
    try:
        started = await eventually(
            lambda: re.search(r"running on (http://127\.0\.0\.1:\d+)", output.read_text())
        )
        async with httpx2.AsyncClient() as client:
            assert (await client.post(f"{started[1]}/orders/7")).json() == {"job": "order-7"}
        await eventually(lambda: re.search(r"^\[INFO\] .*order-7.*$", output.read_text(), re.MULTILINE))
    finally:
        running.terminate()
        await running.wait()
