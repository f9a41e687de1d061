"""Jobs by the clock, in a time zone. Any number of workers may run this; each moment fires once.

Run it:   python examples/cron.py   (a week passes in milliseconds)
For real: yamchi up --app examples/cron.py:app
"""

import asyncio

from yamchi import Job, Yamchi
from yamchi.testing import TestApp

app = Yamchi()


@app.cron("0 3 * * *", zone="Asia/Almaty")
async def nightly(job: Job[None]) -> None:
    print(f"{job.started_at:%a %d %b %H:%M} UTC  nightly report")


@app.cron("30 9 * * MON")
async def weekly(job: Job[None]) -> None:
    print(f"{job.started_at:%a %d %b %H:%M} UTC  weekly digest")


async def main() -> None:
    async with TestApp() as test:
        test.adopt(app)
        await test.clock.advance("7d")


if __name__ == "__main__":
    asyncio.run(main())
