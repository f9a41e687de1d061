from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.services.s3 import S3
from yamchi.testing import TestApp
from yamchi.web import create_app

USER = "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"


@dataclass
class Studio:
    """An application under a movable clock, and its API."""

    app: TestApp
    client: httpx2.AsyncClient
    home: Path

    async def upload(self, content: bytes, filename: str = "photo.jpg", **fields: str) -> httpx2.Response:
        given = {"entityType": "company_photo", **fields}
        files = {"file": (filename, content, "image/jpeg")}
        return await self.client.post("/api/admin/media/upload-async", data=given, files=files)

    async def made(self, content: bytes, **fields: str) -> dict[str, Any]:
        """Upload a picture and let it be worked on."""
        answer = await self.upload(content, **fields)
        assert answer.status_code == 202, answer.text
        await self.app.drain()
        return await self.show(answer.json()["mediaId"])

    async def show(self, media_id: str) -> dict[str, Any]:
        return dict((await self.client.get(f"/api/admin/media/{media_id}")).json())

    @property
    def temp_files(self) -> list[Path]:
        return list((self.home / "var" / "media" / "temp").glob("*"))

    @property
    def public_files(self) -> list[str]:
        folder = self.home / "public" / "uploads"
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@asynccontextmanager
async def a_studio(home: Path, **settings: Any) -> AsyncIterator[Studio]:
    async with TestApp(home=home, **{"media_processes": 1, **settings}) as app:
        app.serve()
        transport = httpx2.ASGITransport(create_app(app))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield Studio(app, client, home)


@pytest.fixture
async def studio(tmp_path: Path) -> AsyncIterator[Studio]:
    async with a_studio(tmp_path) as studio:
        yield studio


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    with S3() as server:
        yield server
