"""A chain of two days, tested in milliseconds: `TestApp` keeps everything in memory and its clock moves when told.

Run it: python examples/testing_time.py, or as a test: pytest examples/testing_time.py
"""

import asyncio

from yamchi import Job, Yamchi
from yamchi.testing import TestApp

app = Yamchi()
sent: list[str] = []


@app.job("chain")
async def first_letter(job: Job[dict[str, str]]) -> None:
    sent.append(f"{job.started_at:%d %H:%M} first letter to {job.data['lead']}")
    await job.queue.add(job.data, name="second_letter", delay="24h", id=f"second-{job.data['lead']}")


@app.job("chain")
async def second_letter(job: Job[dict[str, str]]) -> None:
    sent.append(f"{job.started_at:%d %H:%M} second letter to {job.data['lead']}")
    await job.queue.add(job.data, name="call", delay="24h", id=f"call-{job.data['lead']}")


@app.job("chain")
async def call(job: Job[dict[str, str]]) -> None:
    sent.append(f"{job.started_at:%d %H:%M} call {job.data['lead']}")


async def test_the_chain() -> None:
    sent.clear()
    async with TestApp() as test:
        test.adopt(app)
        chain = test.queue("chain")
        for lead in ("anna", "boris"):
            await chain.add({"lead": lead}, name="first_letter", delay="30m")
        await test.clock.advance("25h")
        await chain.cancel("call-boris")  # he has answered
        await test.clock.advance("24h")
    assert sent[-1] == "03 00:30 call anna"
    assert len(sent) == 5


if __name__ == "__main__":
    asyncio.run(test_the_chain())
    print("\n".join(sent))
