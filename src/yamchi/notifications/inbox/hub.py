"""The hub sends the feed to the pages that are connected to this process.

One task follows the feed by the last number it has seen: it looks as soon as this process itself has written something,
and every quarter of a second for what others wrote. Between two looks it lets new pages in and tells them what they
missed up to that number; so each page hears everything once, in order, whatever happens at the same time.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
import structlog

from yamchi.clock import Clock, Millis
from yamchi.errors import EngineError
from yamchi.notifications.inbox.feed import BATCH, Feed, News
from yamchi.notifications.inbox.store import Inbox, Item
from yamchi.notifications.people.tokens import ERASED, PersonTokens

log = structlog.get_logger("yamchi.inbox")

AT_ONCE = 200
"""Pages let in together: one look at the tables for all of them, and not too long a one for those who wait."""

PING = '{"type":"ping"}'


@dataclass(frozen=True, slots=True)
class Limits:
    """What a page may expect, and what it may not exceed."""

    look_every: float = 0.25
    """Seconds between two looks for what other processes wrote."""
    heartbeat: Millis = 25_000
    pages_of_a_person: int = 20
    most_missed: int = 500
    """A page that missed more loads everything again, which is quicker."""
    most_pending: int = 200
    """Frames that may wait for a slow page; with more it is sent away, to come back and catch up."""


class Page(Protocol):
    """An open page."""

    user_id: str
    minted_at: Millis
    """When its token was made."""
    since: int | None
    """The last number it has seen, if it has been here before."""

    def admit(self, frames: Sequence[str]) -> None:
        """Admit the page, and send it these first, however many they are."""

    def offer(self, frame: str) -> None:
        """Send this as soon as the page takes it; never waits."""

    def beat(self, frame: str, now: Millis) -> None:
        """Send a ping, or close the page if its token has expired."""

    def refuse(self, why: str) -> None:
        """Close the page: its token is good for nothing any more."""


class Hub:
    """The open pages of this process, by person."""

    def __init__(self, feed: Feed, inbox: Inbox, persons: PersonTokens, clock: Clock) -> None:
        self.limits = Limits()
        self._feed = feed
        self._inbox = inbox
        self._persons = persons
        self._clock = clock
        self._pages: dict[str, set[Page]] = defaultdict(set)
        self._joining: dict[Page, None] = {}
        self._counts: Counter[str] = Counter()
        self._cursor: int | None = None
        self._is_deaf = False
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # ── Pages ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, page: Page) -> bool:
        """Let a page in; False when the person has too many open here."""
        if self._counts[page.user_id] >= self.limits.pages_of_a_person:
            return False
        self._counts[page.user_id] += 1
        self._joining[page] = None
        self._start()
        self._news.set()
        return True

    def leave(self, page: Page) -> None:
        """Forget a page. One that has left already may leave again."""
        pages = self._pages.get(page.user_id, set())
        if page not in pages and page not in self._joining:
            return
        self._joining.pop(page, None)
        pages.discard(page)
        self._counts[page.user_id] -= 1
        if not self._counts[page.user_id]:
            del self._counts[page.user_id]
            self._pages.pop(page.user_id, None)

    @property
    def pages(self) -> list[Page]:
        """Those who have been let in."""
        return [page for pages in self._pages.values() for page in pages]

    async def close(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self) -> None:
        if self._tasks:
            return
        self._feed.listeners.discard(self._news.set)
        self._news = asyncio.Event()  # the one before may be of an event loop that has ended
        self._feed.listeners.add(self._news.set)
        for work in (self._follow(), self._keep_beating()):
            task = asyncio.create_task(work, name="live")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # ── Following ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _follow(self) -> None:
        while True:
            try:
                await self._look()
                self._is_deaf = False
            except Exception as error:  # whatever it was: pages that hear nothing would not know it
                is_ours = not isinstance(error, EngineError)
                if not self._is_deaf:
                    log.warning(
                        "sending the feed to open pages failed; it is tried again",
                        error=str(error),
                        exc_info=is_ours,
                    )
                self._is_deaf = True
            await self._wait()

    async def _look(self) -> None:
        if not self._counts:
            self._cursor = None  # nobody is here to hear what comes now
            return
        if self._cursor is None:
            _, self._cursor = await self._feed.bounds()
        rows = await self._feed.after(self._cursor)
        await self._tell(rows)
        await self._admit(self._cursor)
        if len(rows) == BATCH or self._joining:
            self._news.set()  # there is more; but nobody waits at the door for all of it

    async def _wait(self) -> None:
        """Until something is written here, or for a moment, since others may have written. With no pages, until one opens."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.look_every if self._counts else None):
                await self._news.wait()
        self._news.clear()

    async def _tell(self, rows: Sequence[News]) -> None:
        """Tell everybody what came; the cursor moves together with what is told, so nothing is told twice."""
        if any(row.kind == "erased" for row in rows):
            await self._refuse_erased()
        news = [row for row in rows if row.user_id in self._pages]
        frames = await self._frames(news, await self._unread(news)) if news else {}
        for one in news:
            pages = tuple(self._pages.get(one.user_id, ())) if one.seq in frames else ()
            for page in pages:  # a copy: one that is full leaves while we go
                page.offer(frames[one.seq])
        if rows:
            self._cursor = rows[-1].seq
        await self._note_delivered(news)

    async def _admit(self, cursor: int) -> None:
        """Admit the pages that joined, with what they missed up to the cursor, which does not move meanwhile."""
        if not self._joining:
            return
        joining = tuple(self._joining)[:AT_ONCE]
        oldest, _ = await self._feed.bounds()
        missed = await asyncio.gather(*(self._missed(page, oldest, cursor) for page in joining))
        news = [one for _, missed_by_one in missed for one in missed_by_one]
        unread = await self._inbox.unread({page.user_id for page in joining})
        frames = await self._frames(news, unread)
        for page, (is_anew, theirs) in zip(joining, missed, strict=True):
            if page not in self._joining:  # it left while we asked
                continue
            del self._joining[page]
            self._pages[page.user_id].add(page)
            welcome = _frame("welcome", cursor, unread=unread[page.user_id], reset=is_anew)
            page.admit([welcome, *(frames[one.seq] for one in theirs if one.seq in frames)])
        await self._note_delivered(news)

    async def _missed(self, page: Page, oldest: int, cursor: int) -> tuple[bool, list[News]]:
        """What a page missed, and whether that is too much: then it must load everything again."""
        most, since = self.limits.most_missed, page.since
        if since is not None and not oldest - 1 <= since <= cursor:
            since = None  # it was here too long ago, or with another database
        if since is not None:
            news = await self._feed.missed(page.user_id, since, cursor, most + 1)
            if len(news) <= most:
                return False, news
        return True, await self._feed.messages(page.user_id, since, cursor, most)

    async def _frames(self, news: Sequence[News], unread: Mapping[str, int]) -> dict[int, str]:
        """Lines of the feed as pages read them, with what they speak of as it is now; what is gone is left out."""
        message_ids = {one.message_id for one in news if one.kind == "item" and one.message_id}
        items = await self._inbox.items(list(message_ids))
        frames = ((one.seq, _told(one, items, unread)) for one in news)
        return {seq: frame for seq, frame in frames if frame is not None}

    async def _unread(self, news: Sequence[News]) -> Mapping[str, int]:
        return await self._inbox.unread({one.user_id for one in news if one.kind != "message"})

    async def _note_delivered(self, news: Iterable[News]) -> None:
        if seqs := [one.seq for one in news if one.kind == "message"]:
            await self._feed.note_delivered(seqs)

    # ── Heartbeats ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _keep_beating(self) -> None:
        while True:
            await self._clock.sleep(self.limits.heartbeat)
            await self._refuse_erased()
            for page in self.pages:
                page.beat(PING, self._clock.now())

    async def _refuse_erased(self) -> None:
        """Who was erased since a token was made may be there again, with messages that its page is not to hear."""
        pages = self.pages
        try:
            erased = await self._persons.erased({page.user_id for page in pages})
        except EngineError:
            return  # nothing is heard meanwhile, which `_follow` has said
        for page in pages:
            if page.minted_at < erased.get(page.user_id, 0):
                page.refuse(ERASED)


def _told(news: News, items: Mapping[str, Item], unread: Mapping[str, int]) -> str | None:
    if news.kind == "message":
        return _frame("message", news.seq, message=orjson.Fragment(news.body or "null"))
    if news.kind == "read_all":
        return _frame("read_all", news.seq, unread=unread[news.user_id])
    item = items.get(news.message_id or "")
    return None if item is None else _frame("item", news.seq, unread=unread[news.user_id], item=item)


def _frame(kind: str, seq: int, **rest: Any) -> str:
    return orjson.dumps({"type": kind, "seq": seq, **rest}).decode()
