"""What is heard of a picture while a child process works on it."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pydantic import BaseModel, Field

from yamchi.media.model import Picture
from yamchi.queues.job import Job
from yamchi.queues.records import JobRecord


class News(BaseModel):
    """What a child says while it works. It may have been taken over by the file it decodes: only this much is passed on."""

    percent: int = Field(ge=0, le=100)
    placeholder: str | None = Field(default=None, pattern="^[0-9a-f]{1,100}$")
    width: int | None = Field(default=None, ge=1)
    height: int | None = Field(default=None, ge=1)


OnNews = Callable[[Picture, News], Awaitable[None]]


class ReportingJob:
    """A job whose progress goes to the queue as a percentage and to the uploader's page with what is known of the picture.

    Without a job, for a caller that waits itself, only the page hears of it.
    """

    def __init__(
        self, record: JobRecord, picture: Picture, on_news: OnNews, job: Job[Any] | None = None
    ) -> None:
        self.record, self.name = record, record.name
        self._job = job
        self._picture = picture
        self._on_news = on_news

    async def progress(self, value: Any) -> None:
        news = News.model_validate(value)
        if self._job is not None:
            await self._job.progress(news.percent)
        await self._on_news(self._picture, news)

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext() if self._job is None else self._job.waiting()

    async def log(self, *lines: str) -> None:
        if self._job is not None:
            await self._job.log(*lines)
