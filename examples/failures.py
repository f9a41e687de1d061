"""A failure has a kind: try again, never again, the other side is down, not now. What is over becomes a dead letter.

Run it: python examples/failures.py   (hours of waiting pass in milliseconds)
"""

import asyncio
from datetime import timedelta

from pydantic import BaseModel

from yamchi import Job, Outage, Snooze, Unrecoverable, Yamchi
from yamchi.testing import TestApp

app = Yamchi()
provider_is_up = False


class Letter(BaseModel):
    to: str


@app.job("letters", attempts=3, backoff=["1m", "5m", "15m"])
async def deliver(job: Job[Letter]) -> str:
    match job.data.to:
        case "nobody":
            raise Unrecoverable("There is no such address")  # no further attempt
        case "busy" if job.attempts_made < 3:
            raise ConnectionError("The mailbox is busy")  # any other error: try again after the backoff
        case "outage" if not provider_is_up:
            raise Outage("The provider is down", retry_after=timedelta(hours=1))  # costs no attempt
        case "asleep" if job.started_at and job.started_at.hour < 9:
            raise Snooze(timedelta(hours=1), "It is night there")  # costs no attempt either
    return f"delivered to {job.data.to} at attempt {job.attempts_made}"


async def main() -> None:
    global provider_is_up
    async with TestApp() as test:
        test.adopt(app)
        letters = test.queue("letters")
        for address in ("anna", "nobody", "busy", "outage", "asleep"):
            await letters.add(Letter(to=address), id=address)
        await test.clock.advance("3h")
        provider_is_up = True
        await test.clock.advance("9h")
        for job in sorted(await letters.jobs(), key=lambda job: job.id):
            print(f"{job.id:7} {job.state:9} {job.returned or job.failed_reason}")
        await letters.dead_letters.replay("nobody", {"to": "boris"})  # mended and put back
        await test.drain()
        print("mended  " + (await letters.job("nobody")).returned)


if __name__ == "__main__":
    asyncio.run(main())
