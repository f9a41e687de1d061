"""Limits that hold over all workers: so many a second in all, and so many for each chat.

Run it: python examples/rate_limit.py
"""

import asyncio
from time import perf_counter

from pydantic import BaseModel

from yamchi import Job, Yamchi

app = Yamchi()
began = perf_counter()


class Message(BaseModel):
    chat: int
    text: str


@app.job("telegram", rate="30/s", key_rate="5/s", key="chat")
async def send(job: Job[Message]) -> None:
    print(f"{perf_counter() - began:4.1f} s  chat {job.data.chat}: {job.data.text}")


async def main() -> None:
    global began
    async with app:
        telegram = app.queue("telegram")
        await telegram.add_many(Message(chat=chat, text=f"line {n}") for n in range(4) for chat in (1, 2))
        left, finished = 8, asyncio.Event()

        def count(*_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                finished.set()

        telegram.on("completed", count)
        began, worker = perf_counter(), app.worker()
        working = asyncio.create_task(worker.run())
        await finished.wait()
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
