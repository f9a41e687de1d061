from collections.abc import Iterator

import pytest

from tests.services.s3 import S3


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    server = S3()
    server.start()
    yield server
    server.stop()
