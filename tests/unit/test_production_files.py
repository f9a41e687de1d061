"""What is run in production names commands, settings, paths and metrics that exist."""

import json
import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose
from typer.main import get_command

from yamchi.cli import cli
from yamchi.envfile import env_example
from yamchi.settings import Settings
from yamchi.testing import TestApp
from yamchi.web.routes.health import scrape

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy").glob("*.service"))
GRACE = 5
"""Seconds that a stop may take beyond SHUTDOWN_TIMEOUT."""

_METRIC = re.compile(r"\b(?:yamchi|notification|media)_[a-z_]+\b")
_ENDING = re.compile(r"_(?:total|bucket|sum|count)$")


def longest_stop() -> float:
    return Settings().shutdown_timeout.total_seconds() + GRACE


def commands() -> set[str]:
    return set(get_command(cli).commands)  # type: ignore[attr-defined]


def settings() -> set[str]:
    return set(re.findall(r"^# ([A-Z_]+)=", env_example(), re.MULTILINE))


def compose() -> Any:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return list(json.loads((ROOT / "deploy/grafana-dashboard.json").read_text())["panels"])


# ── Docker ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_image_is_built_in_two_stages_of_one_release_and_is_nobody_special() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert len(bases) == 2
    assert len(set(bases)) == 1, "an environment only runs on the release it was made on"
    assert "USER yamchi" in lines
    assert lines.index("USER yamchi") > max(n for n, line in enumerate(lines) if line.startswith("RUN "))
    (command,) = [json.loads(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD ")]
    assert command[0] == "yamchi"
    assert command[1] in commands()
    assert any("/healthz" in line for line in lines)
    minor = re.search(r"python:(\d+\.\d+)-", bases[0])
    assert minor
    assert f"Python :: {minor[1]}" in (ROOT / "pyproject.toml").read_text()


def test_the_image_gets_what_it_copies_and_sets_what_there_is() -> None:
    text = (ROOT / "Dockerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for source in line.split():
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, f"{source} is kept out of the build"
    named = set(re.findall(r"^(?:ENV|    ) *([A-Z_]+)=", text, re.MULTILINE))
    assert named - {"PATH", "PYTHONUNBUFFERED"} <= settings()


def test_compose_is_as_the_specification_has_it() -> None:
    """`docker compose config` asks for the same; it resolves the merge keys first, as loading them does."""
    checked = PyCompose.from_yaml(yaml.safe_dump(compose()))
    assert set(checked.service_names()) == compose()["services"].keys()
    mistaken = compose()
    mistaken["services"]["api"]["stop_grace"] = "4s"
    with pytest.raises(ValueError, match="stop_grace"):
        PyCompose.from_yaml(yaml.safe_dump(mistaken))


def test_the_services_of_compose() -> None:
    services = compose()["services"]
    assert {"api", "queue-worker", "redis", "postgres", "kafka"} == services.keys()
    for name in ("api", "queue-worker"):
        service = services[name]
        assert service["command"][0] == "yamchi"
        assert service["command"][1] in commands()
        assert int(service["stop_grace_period"].removesuffix("s")) > longest_stop()
        assert service["environment"].keys() <= settings()
        assert all(not one["required"] for one in service["depends_on"].values()), "brokers are a choice"
        assert service["depends_on"].keys() <= services.keys()
    for name in ("redis", "postgres", "kafka"):
        assert services[name]["profiles"] == [name]
        assert services[name]["healthcheck"]["test"]
    used = {one.split(":")[0] for service in services.values() for one in service["volumes"]}
    assert used == compose()["volumes"].keys()


# ── PM2 and systemd ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_pm2_starts_what_there_is_and_waits_for_jobs() -> None:
    script = "console.log(JSON.stringify(require('./ecosystem.config.js')))"
    said = subprocess.run(["node", "-e", script], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    apps = {app["name"]: app for app in json.loads(said)["apps"]}
    assert apps.keys() == {"yamchi-api", "queue-worker"}
    for app in apps.values():
        assert app["args"].split()[0] in commands()
        assert (app["interpreter"], app["exec_mode"]) == ("none", "fork")
        assert app["kill_timeout"] > 1000 * longest_stop()
        assert app["script"].endswith(".venv/bin/yamchi")
    assert apps["queue-worker"]["out_file"] == "logs/out.log"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_starts_what_there_is_and_waits_for_jobs(unit: Path) -> None:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(unit)
    service = parser["Service"]
    program, command, *_ = service["ExecStart"].split()
    assert program.endswith("/.venv/bin/yamchi")
    assert command in commands()
    assert float(service["TimeoutStopSec"]) > longest_stop()
    assert service["User"] != "root"
    assert "EnvironmentFile" not in service, "systemd would read .env by rules of its own, and win"
    assert f"YAMCHI_HOME={service['WorkingDirectory']}" in service["Environment"].split()
    writable = service["ReadWritePaths"].split()
    assert all(path.startswith(service["WorkingDirectory"]) for path in writable)
    if shutil.which("systemd-analyze"):
        said = subprocess.run(
            ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
        ).stderr
        wrong = [line for line in said.splitlines() if unit.name in line and "not executable" not in line]
        assert wrong == []


def test_logs_are_rotated_where_they_are_written(tmp_path: Path) -> None:
    text = (ROOT / "deploy/logrotate.conf").read_text()
    unit = (UNITS[0]).read_text()
    home = re.search(r"^WorkingDirectory=(.+)$", unit, re.MULTILINE)
    assert home
    assert f"{home[1]}/logs/*.log" in text
    assert "copytruncate" in text, "the process keeps its file open"


# ── Watching ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_alert_and_panel_asks_for_a_metric_of_ours() -> None:
    asked = [rule["expr"] for rule in alerts()]
    asked += [target["expr"] for panel in panels() for target in panel["targets"]]
    assert [expression for expression in asked if not _METRIC.search(expression)] == []


async def test_dashboard_and_alerts_ask_for_metrics_that_there_are(tmp_path: Path) -> None:
    app = TestApp(home=tmp_path)
    body = (await scrape(app)).decode()
    await app.close()
    known = {_ENDING.sub("", name) for name in re.findall(r"^# TYPE (\S+)", body, re.MULTILINE)}
    asked = [rule["expr"] for rule in alerts()]
    asked += [target["expr"] for panel in panels() for target in panel["targets"]]
    named = {_ENDING.sub("", name) for expression in asked for name in _METRIC.findall(expression)}
    assert len(named) > 8
    assert named <= known


def test_every_alert_has_its_paragraph() -> None:
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    for rule in alerts():
        assert rule["alert"] in headings
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
