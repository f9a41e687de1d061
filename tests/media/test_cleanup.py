"""Cleanup with many files: folders are walked beside the event loop, and rows are looked up by their key."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.media import pictures
from tests.media.conftest import Studio
from yamchi.media.store import _files_of


def aged(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"old")
    os.utime(path, (0, 0))
    return path


async def test_files_are_walked_and_removed_beside_the_event_loop(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, cleanup = studio.app.media.files, studio.app.media.cleanup
    files.prepare()
    old = [aged(files.temp / "upload-old"), aged(files.uploads / "default" / "gone.webp.x.part")]
    orphan = aged(files.uploads / "default" / "nobody-w640-0.webp")
    seen = list[int]()
    walk, unlink = os.walk, Path.unlink

    def watched_walk(folder: Path) -> Iterator[Any]:
        for found in walk(folder):
            seen.append(threading.get_ident())
            yield found

    def watched_unlink(path: Path, **how: bool) -> None:
        seen.append(threading.get_ident())
        unlink(path, **how)

    await studio.app.database.open()  # which walks through the migrations
    monkeypatch.setattr(os, "walk", watched_walk)
    monkeypatch.setattr(Path, "unlink", watched_unlink)
    assert (await cleanup.run(30)).freed_bytes == 6
    assert (await cleanup.orphans(delete=False)).orphans == ["default/nobody-w640-0.webp"]
    assert orphan.exists()
    assert (await cleanup.orphans(delete=True)).deleted == 1
    assert not any(path.exists() for path in (*old, orphan))
    assert seen
    assert threading.get_ident() not in seen


async def test_files_of_pictures_are_looked_up_by_key(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg())
    store = studio.app.media.store
    keys = studio.public_files
    strange = [
        "company_photo/none",
        "x",
        f"other/{keys[0].rpartition('/')[2]}",
        f"company_photo/{found['id']}-a-b",
    ]
    assert await store.named([*keys, *strange]) == set(keys)
    query = _files_of([found["id"]]).compile(compile_kwargs={"literal_binds": True})
    plan = await studio.app.database.read(
        lambda c: [row.detail for row in c.execute(text(f"EXPLAIN QUERY PLAN {query}"))]
    )
    assert not [step for step in plan if step.startswith("SCAN")], plan


async def test_thirty_days_unless_told_otherwise(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg())
    await studio.client.delete(f"/api/admin/media/{found['id']}")
    await studio.app.clock.advance("29d")
    assert (await studio.app.media.cleanup.run()).deleted == 0
    await studio.app.clock.advance("1d1s")
    assert (await studio.app.media.cleanup.run()).deleted == 1


async def test_of_several_cleanups_at_once_one_counts_a_picture(studio: Studio) -> None:
    found = await studio.made(pictures.jpeg())
    await studio.client.delete(f"/api/admin/media/{found['id']}")
    cleaned = await asyncio.gather(*(studio.app.media.cleanup.run(0) for _ in range(5)))
    assert sum(one.deleted for one in cleaned) == 1


async def test_what_is_only_in_a_bucket_that_nobody_names_any_more_is_not_freed(studio: Studio) -> None:
    found = await studio.app.media.get((await studio.made(pictures.jpeg()))["id"])
    files = [one.file for one in found.variants]
    await studio.app.media.store.synced(found.id, files, is_synced=True, is_local=False)
    for one in found.variants:
        studio.app.media.files.public_file(found.entity_type, one.file).unlink()
    await studio.client.delete(f"/api/admin/media/{found.id}")
    cleaned = await studio.app.media.cleanup.run(0)
    assert (cleaned.deleted, cleaned.freed_bytes) == (1, len(pictures.jpeg()))
