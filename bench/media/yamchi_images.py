"""Yamchi making variants, with everything on: `python -m bench.media.yamchi_images PHOTO IMAGES MORE`.

An upload is accepted with its row and its job, claimed, worked on in a child process, its variants hashed, written and flushed
to the disk, its row completed, the upload removed. So many more are uploaded than counted, so that no core waits for the last one.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import uvloop

from bench.media.waiting import Finished
from yamchi import Yamchi
from yamchi.observe import logging

KIND = "company_photo"
QUEUE = "media-processing"

app = Yamchi()
app.serve()
logging.configure(level=app.settings.log_level)  # as the service does


async def main(photo: Path, images: int, more: int) -> None:
    async with app:
        finished = Finished(app.queue(QUEUE))
        worker = asyncio.create_task(app.work([QUEUE]))
        first = await upload(photo, app.media.settings.media_processes)
        await finished.wait_for(first)  # all children have started
        start = time.perf_counter()
        uploaded = await upload(photo, images + more)
        await finished.wait_for(uploaded, images)
        seconds = time.perf_counter() - start
        await finished.wait_for(uploaded)
        found = await app.media.get(uploaded.popitem()[1])
        print(json.dumps({"rate": images / seconds, "bytes": sum(one.size for one in found.variants)}))
        worker.cancel()
        await asyncio.wait([worker])


async def upload(photo: Path, images: int) -> dict[str, str]:
    """Accept so many uploads of the photo; the pictures' ids, by their jobs'."""
    accepted = [await app.media.service.accept(await sent(photo), KIND, photo.name) for _ in range(images)]
    return {job_id: picture.id for picture, job_id in accepted}


async def sent(photo: Path) -> Path:
    temp: Path = app.media.files.new_temp()
    await asyncio.to_thread(os.link, photo, temp)
    return temp


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
