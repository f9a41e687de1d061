"""The engine contract as tests. An engine that passes is an engine.

    from yamchi.testing.conformance import EngineSuite, ManagementSuite, ProcessSuite, WorkerSuite

    class TestMyEngine(EngineSuite, ManagementSuite, WorkerSuite, ProcessSuite):
        @pytest.fixture
        async def connect(self):                  # each call gives another opened engine on the same store,
            ...                                   # as another process would have it
            yield connect

A test is skipped only by what the engine's own `can` denies, and the skip says so.
"""

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{suite}"
        for suite in ("apps", "base", "engine", "failures", "management", "processes", "worker")
    )
)

from yamchi.testing.conformance.engine import EngineSuite  # noqa: E402
from yamchi.testing.conformance.management import ManagementSuite  # noqa: E402
from yamchi.testing.conformance.processes import ProcessSuite  # noqa: E402
from yamchi.testing.conformance.worker import WorkerSuite  # noqa: E402

__all__ = ["EngineSuite", "ManagementSuite", "ProcessSuite", "WorkerSuite"]
