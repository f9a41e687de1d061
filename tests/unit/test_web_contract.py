"""The API does what its OpenAPI page says, whatever is asked of it: a real server, requests made up by schemathesis.

Never a server error, only documented answers, and bodies that fit their schemas.
"""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from tests.processes import Process

from yamchi.shipped import shipped_app
from yamchi.web.app import create_app

EXAMPLES = 12
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]

schema = schemathesis.openapi.from_dict(create_app(shipped_app()).openapi())
OPERATIONS = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = Process(tmp_path_factory.mktemp("contract"), "up", "--port", "0")
    try:
        yield process.url
    finally:
        process.end(signal.SIGTERM)


def test_every_operation_can_be_asked() -> None:
    assert all(isinstance(found, Ok) for found in schema.get_all_operations())


# A test of its own for each: items of `schema.parametrize` share one name, and of those a parallel run runs only one.
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_every_answer_is_as_documented(operation: APIOperation[Any, Any, Any, Any], server: str) -> None:
    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        derandomize=True,
    )
    def ask(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(base_url=server, checks=CHECKS)

    ask()
