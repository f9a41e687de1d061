from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel, Field

from tests.services.s3 import S3
from yamchi.reports.kinds import Content, Rows
from yamchi.testing import TestApp
from yamchi.web import create_app


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    with S3() as server:
        yield server


class SalesParams(BaseModel):
    rows: int = Field(default=3, ge=0)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[TestApp]:
    async with TestApp(home=tmp_path) as app:

        @app.reports.kind("sales", params=SalesParams, summary="What was sold.")
        async def sales(params: SalesParams) -> Content:
            async def batches() -> AsyncIterator[Sequence[Sequence[Any]]]:
                for begin in range(0, params.rows, 1000):
                    yield [(n, "=1+1", "Қаз") for n in range(begin, min(begin + 1000, params.rows))]

            return Content("Продажи", {}, Rows(("номер", "формула", "слово"), batches, params.rows))

        app.serve()
        yield app


@pytest.fixture
async def client(app: TestApp) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(create_app(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
