"""A queue, a handler, a job.

Run it once:      python examples/quickstart.py
Keep it running:  yamchi up --app examples/quickstart.py:app, then
                  yamchi jobs add thumbnails '{"url": "poster.jpg"}' --app examples/quickstart.py:app
"""

import asyncio

from pydantic import BaseModel

from yamchi import Job, Yamchi

app = Yamchi()  # settings from the environment and .env; jobs live in var/yamchi.db unless told otherwise


class Thumb(BaseModel):
    url: str
    width: int = 320


@app.job("thumbnails", concurrency=4, attempts=5)
async def make(job: Job[Thumb]) -> dict[str, str]:
    await job.progress(50)
    return {"file": f"{job.data.url}.{job.data.width}.webp"}


async def main() -> None:
    async with app:
        thumbnails = app.queue("thumbnails")
        finished = asyncio.Event()

        def tell(job: Job[Thumb], result: dict[str, str]) -> None:
            print(f"{job.id} made {result['file']}")
            finished.set()

        thumbnails.on("completed", tell)
        await thumbnails.add(Thumb(url="poster.jpg"), id="thumb-42")
        worker = app.worker()
        working = asyncio.create_task(worker.run())
        await finished.wait()
        worker.stop()
        await working
        print(await thumbnails.stats())


if __name__ == "__main__":
    asyncio.run(main())
