"""Yamchi making variants, with everything on: `python -m bench.media.yamchi_images PHOTO IMAGES`.

An upload is accepted with its row and its job, claimed, worked on in a child process, its variants hashed, written and flushed
to the disk, its row completed, the upload removed.
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


async def main(photo: Path, images: int) -> None:
    async with app:
        finished = Finished(app.queue(QUEUE))
        worker = asyncio.create_task(app.work([QUEUE]))
        await make(finished, photo, app.media.settings.media_processes)  # all children have started
        start = time.perf_counter()
        made = await make(finished, photo, images)
        seconds = time.perf_counter() - start
        found = await app.media.get(made[0])
        print(json.dumps({"rate": images / seconds, "bytes": sum(one.size for one in found.variants)}))
        worker.cancel()
        await asyncio.wait([worker])


async def make(finished: Finished, photo: Path, images: int) -> list[str]:
    """Accept so many uploads of the photo and wait for their variants; the pictures' ids."""
    accepted = [await app.media.service.accept(await upload(photo), KIND, photo.name) for _ in range(images)]
    await finished.wait_for(job_id for _, job_id in accepted)
    return [picture.id for picture, _ in accepted]


async def upload(photo: Path) -> Path:
    temp: Path = app.media.files.new_temp()
    await asyncio.to_thread(os.link, photo, temp)
    return temp


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2])))
