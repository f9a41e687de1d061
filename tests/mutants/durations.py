"""A plugin of pytest that writes down how long each test took that passed, setup and teardown included."""

from collections import defaultdict
from pathlib import Path

import pytest

_seconds: dict[str, float] = defaultdict(float)
_passed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-file", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # its reports are also told to the process that controls it
        config.pluginmanager.register(_Durations(config.getoption("--durations-file")))


class _Durations:
    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        _seconds[test] += report.duration
        if report.when == "call" and report.passed:
            _passed.add(test)
        if report.when == "teardown" and report.passed and test in _passed:
            with self._file.open("a") as file:
                file.write(f"{_seconds[test]:.3f} {test}\n")
