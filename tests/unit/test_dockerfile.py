"""The Dockerfile's steps, done one by one in an empty folder: what comes out starts, is healthy, and writes where volumes are."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.services.server import free_port

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 200.0
"""Seconds that a start may take on a busy machine."""

NOT_HERE = {"useradd", "chown"}
"""Commands about the image's own user, which a folder does not have."""

TOKEN = "a-token-for-this-test"
ABSOLUTE = re.compile(r"(?<![\w.:/-])/(?=(?:opt|srv|build)\b)")
"""A path of the image's own."""

pytestmark = pytest.mark.timeout(900)


class Image:
    """A folder in which a Dockerfile's instructions were followed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.variables: dict[str, str] = {}
        self.volumes: list[Path] = []
        self.user = "root"
        self.command: list[str] = []
        self.health: list[str] = []
        self._folder = root
        self._stages: dict[str, Path] = {}
        self._stage = ""

    def follow(self, dockerfile: str) -> None:
        text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", dockerfile, flags=re.MULTILINE))
        for line in filter(None, map(str.strip, text.splitlines())):
            word, _, rest = line.partition(" ")
            getattr(self, f"do_{word.lower()}")(rest)

    def path(self, text: str) -> Path:
        return self.root / text.lstrip("/") if text.startswith("/") else self._folder / text

    def environment(self, **more: str) -> dict[str, str]:
        usual = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(self.root)}
        inside = {name: ABSOLUTE.sub(f"{self.root}/", value) for name, value in self.variables.items()}
        return {name: os.path.expandvars(value) for name, value in (usual | inside | more).items()}

    # ── Instructions ──────────────────────────────────────────────────────────────────────────────────────────────

    def do_from(self, rest: str) -> None:
        """Each stage begins empty, at the same place: an environment knows where it was made."""
        if self.root.exists():
            self._stages[self._stage] = self.root.with_name(f"stage-{self._stage}")
            self.root.rename(self._stages[self._stage])
        self.root.mkdir()
        self._stage, self._folder = rest.partition(" AS ")[2], self.root
        self.variables = {}

    def do_run(self, rest: str) -> None:
        for part in rest.split("&&"):
            if shlex.split(part)[0] in NOT_HERE:
                continue
            command = ABSOLUTE.sub(f"{self.root}/", part).replace("--no-cache-dir", "")
            done = subprocess.run(
                ["/bin/sh", "-ec", command],
                cwd=self._folder,
                env={
                    **os.environ,
                    **self.environment(),
                    "PIP_NO_COMPILE": "1",
                },  # few modules are imported here
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"

    def do_copy(self, rest: str) -> None:
        words = rest.split()
        origin = ROOT
        if words[0].startswith("--from="):
            origin = self._stages[words.pop(0).removeprefix("--from=")]
        *sources, target = words
        for source in sources:
            place = self.path(target) / Path(source).name if target.endswith("./") else self.path(target)
            found = origin / source.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if found.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(found, place, symlinks=True, ignore=ignored)
            else:
                shutil.copy(found, place)

    def do_workdir(self, rest: str) -> None:
        self._folder = self.path(rest)
        self._folder.mkdir(parents=True, exist_ok=True)

    def do_env(self, rest: str) -> None:
        for name, value in (part.split("=", 1) for part in shlex.split(rest)):
            self.variables[name] = value.replace("$PATH", "/usr/bin:/bin")

    def do_user(self, rest: str) -> None:
        self.user = rest

    def do_volume(self, rest: str) -> None:
        self.volumes = [self.path(one) for one in json.loads(rest)]

    def do_healthcheck(self, rest: str) -> None:
        self.health = json.loads(rest.partition("CMD ")[2])

    def do_cmd(self, rest: str) -> None:
        self.command = json.loads(rest)

    def do_expose(self, rest: str) -> None:
        assert rest == self.variables["PORT"]

    def do_stopsignal(self, rest: str) -> None:
        assert rest == "SIGTERM"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    image = Image(tmp_path_factory.mktemp("docker") / "root")
    image.follow((ROOT / "Dockerfile").read_text())
    return image


@pytest.fixture
def port() -> str:
    return str(free_port())


def commands() -> Iterator[list[str]]:
    """What containers of this image run: its own command, and those of compose."""
    yield ["yamchi", "up"]
    for name in ("api", "queue-worker"):
        yield yaml.safe_load((ROOT / "compose.yaml").read_text())["services"][name]["command"]


def test_it_runs_as_nobody_special_with_the_command_that_is_tried_here(image: Image) -> None:
    assert (image.user, image.command) == ("yamchi", next(commands()))
    assert not (image.root / "build").exists(), "what the wheel was made of stays in the first stage"


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_it_starts_is_healthy_and_stops(image: Image, command: list[str], port: str) -> None:
    environment = image.environment(ADMIN_TOKEN=TOKEN, HOST="127.0.0.1", PORT=port)
    before = set(image.root.rglob("*"))
    output = image.root.parent / f"{command[1]}.txt"
    asked = [port if word == image.variables["PORT"] else word for word in command]
    with output.open("wb") as said:
        process = subprocess.Popen(
            [image.root / "opt/yamchi/bin" / asked[0], *asked[1:]],
            cwd=image.root / "srv/yamchi",
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not is_healthy(image, environment):
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0, output.read_text()
    assert not is_healthy(image, environment)
    new = {path for path in set(image.root.rglob("*")) - before if "__pycache__" not in path.parts}
    outside = {path for path in new if not any(path.is_relative_to(volume) for volume in image.volumes)}
    assert outside == set(), "what is written would be lost with the container"


def test_without_a_token_it_says_what_is_missing(image: Image, port: str) -> None:
    done = subprocess.run(
        [image.root / "opt/yamchi/bin/yamchi", "up"],
        cwd=image.root / "srv/yamchi",
        env=image.environment(PORT=port),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 1
    assert "ADMIN_TOKEN" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def is_healthy(image: Image, environment: dict[str, str]) -> bool:
    program = image.root / "opt/yamchi/bin" / image.health[0]
    return (
        subprocess.run(
            [program, *image.health[1:]], env=environment, capture_output=True, check=False
        ).returncode
        == 0
    )
