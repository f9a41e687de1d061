"""Yamchi copying finished pictures to a bucket, through the queue: `python -m bench.media.yamchi_sync PICTURES VARIANTS BYTES`.

For each picture a job; in it each object is sent, with its SHA-256 in the request's signature, and noted in the table.
"""

import asyncio
import hashlib
import json
import os
import sys
import time

import uvloop

from bench.media.waiting import Finished
from yamchi import Yamchi
from yamchi.media.processing import Made, Variant

KIND = "company_photo"
QUEUE = "media-sync"

app = Yamchi()
app.serve()


async def main(pictures: int, variants: int, size: int) -> None:
    async with app:
        finished = Finished(app.queue(QUEUE))
        worker = asyncio.create_task(app.work([QUEUE]))
        await sync(finished, [await keep(variants, size)])  # the connection is open
        ids = [await keep(variants, size) for _ in range(pictures)]
        start = time.perf_counter()
        await sync(finished, ids)
        seconds = time.perf_counter() - start
        found = await app.media.get(ids[-1])
        assert all(one.is_synced for one in found.variants)
        print(json.dumps({"rate": pictures * variants / seconds}))
        worker.cancel()
        await asyncio.wait([worker])


async def sync(finished: Finished, ids: list[str]) -> None:
    await finished.wait_for(await app.media.sync.sync(ids, "upload"))


async def keep(variants: int, size: int) -> str:
    """A picture that is ready, with files of nothing but noise; its id."""
    media = app.media
    picture_id = os.urandom(16).hex()
    await media.store.add({"id": picture_id, "entity_type": KIND, "original_filename": "photo.jpg"})
    made = Made("image/jpeg", 4000, 3000, 1, picture_id, "")
    folder = media.files.folder_of(KIND)
    for number in range(variants):
        content = os.urandom(size)
        digest = hashlib.sha256(content).hexdigest()
        file = folder / f"{picture_id}-{number}-{digest[:12]}.webp"
        file.write_bytes(content)
        made.variants.append(Variant(str(number), file.name, "image/webp", 100, 100, size, digest))
    found = await media.store.get(picture_id)
    await media.store.finish(
        found, made, original=picture_id, syncs=False, is_there=lambda file: (folder / file).exists()
    )
    return picture_id


if __name__ == "__main__":
    uvloop.run(main(*map(int, sys.argv[1:])))
