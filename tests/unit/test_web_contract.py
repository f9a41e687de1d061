"""The API does what its OpenAPI page says, whatever is asked of it: a real server, requests made up by schemathesis.

Never a server error, only documented answers, and bodies that fit their schemas.
"""

import signal
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = Process(tmp_path_factory.mktemp("contract"), "up", "--port", "0")
    try:
        yield process.url
    finally:
        process.end(signal.SIGTERM)


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
)
def test_every_answer_is_as_documented(case: schemathesis.Case, server: str) -> None:
    case.call_and_validate(base_url=server, checks=CHECKS)
