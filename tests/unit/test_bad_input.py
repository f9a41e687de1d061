"""Whatever is wrong with a job, a queue or a schedule: one clear sentence that names it, and nothing is added."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from yamchi import Job, New, RateLimit, Yamchi
from yamchi.errors import ConfigurationError, InvalidJob, UnknownJob, UnknownQueue, WrongState, YamchiError
from yamchi.queues.options import Backoff, JobOptions
from yamchi.testing import TestApp


class Order(BaseModel):
    number: int
    customer: str


@pytest.fixture
async def app() -> TestApp:
    app = TestApp()

    @app.job("orders")
    async def handle(job: Job[Order]) -> None:
        """Nothing to do."""

    @app.job("anything")
    async def take(job: Job[Any]) -> None:
        """Nothing to do."""

    return app


def assert_one_sentence(error: YamchiError, *words: str) -> None:
    said = str(error)
    assert "\n" not in said
    assert 10 < len(said) < 400, said
    for word in words:
        assert word in said, said


async def test_of_many_mistakes_some_are_named_and_the_rest_counted(app: TestApp) -> None:
    @app.job("lists")
    async def take(job: Job[list[str]]) -> None:
        """Nothing to do."""

    with pytest.raises(InvalidJob) as refused:
        await app.queue("lists").add([1, 2, 3, 4, 5, "six", 7, 8])
    assert_one_sentence(refused.value, "0:", "4:", "(and 2 more)")
    with pytest.raises(InvalidJob) as refused:
        await app.queue("lists").add([1, 2, 3, 4, 5])
    assert "more" not in str(refused.value)


NAIVE = datetime(2026, 1, 1)

REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a negative delay": ({"delay": -5}, ("delay", "-5")),
    "a delay that is no span": ({"delay": "soon"}, ("'soon'", "'30s'")),
    "a delay that is a truth": ({"delay": True}, ("True",)),
    "a delay that never ends": ({"delay": float("inf")}, ("inf",)),
    "a delay that is no number": ({"delay": float("nan")}, ("nan",)),
    "delay and run_at": ({"delay": "1m", "run_at": datetime(2026, 1, 1, tzinfo=UTC)}, ("delay", "run_at")),
    "run_at without a zone": ({"run_at": NAIVE}, ("2026-01-01T00:00:00", "time zone")),
    "expires_at without a zone": ({"expires_at": NAIVE}, ("2026-01-01T00:00:00", "time zone")),
    "run_at that is text": ({"run_at": "2026-01-01"}, ("'2026-01-01'", "datetime")),
    "priority 11": ({"priority": 11}, ("priority", "11")),
    "priority -1": ({"priority": -1}, ("priority", "-1")),
    "priority that is text": ({"priority": "high"}, ("priority", "'high'")),
    "no attempts": ({"attempts": 0}, ("attempts", "0")),
    "attempts that are text": ({"attempts": "many"}, ("attempts", "'many'")),
    "keep fewer than none": ({"keep_completed": -1}, ("keep_completed",)),
    "a negative timeout": ({"timeout": timedelta(seconds=-1)}, ("timeout",)),
    "a timeout of nothing": ({"timeout": 0}, ("timeout",)),
    "backoff of an unknown kind": ({"backoff": {"type": "random"}}, ("backoff", "'random'")),
    "backoff with a wild jitter": ({"backoff": {"type": "fixed", "jitter": 7}}, ("jitter", "7")),
    "backoff steps without steps": ({"backoff": {"type": "steps"}}, ("backoff", "steps")),
    "backoff without a step": ({"backoff": []}, ("backoff", "step")),
    "a negative backoff": ({"backoff": [-1]}, ("backoff", "-1")),
    "three spans for one": ({"backoff": "1m 5m 15m"}, ("'1m 5m 15m'", "['1m', '5m', '15m']")),
    "a delay of twice a minute": ({"delay": "1m 1m"}, ("delay", "'1m 1m'")),
    "an empty id": ({"id": ""}, ("id", "''")),
    "an id with a space": ({"id": "two words"}, ("'two words'",)),
    "an id with a colon": ({"id": "a:b"}, ("'a:b'",)),
    "an id with a line break": ({"id": "a\nb"}, (r"'a\nb'",)),
    "an id with a zero": ({"id": "a\0b"}, (r"'a\x00b'",)),
    "an id that is too long": ({"id": "x" * 300}, ("255",)),
    "an id that is a number": ({"id": 42}, ("id", "42")),
    "an unknown name": ({"name": "unheard-of"}, ("anything", "'unheard-of'", "take")),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_wrong_option_is_named(app: TestApp, what: str) -> None:
    options, words = REFUSED[what]
    with pytest.raises((InvalidJob, UnknownJob)) as refused:
        await app.queue("anything").add({}, **options)
    assert_one_sentence(refused.value, *words)
    assert (await app.queue("anything").stats())["waiting"] == 0


@pytest.mark.parametrize(
    "steps", [["1m", "5m", "15m"], "1m, 5m, 15m", "1m,5m,15m", (60, 300.0, timedelta(minutes=15))]
)
async def test_steps_of_a_backoff_may_be_a_list_or_text(app: TestApp, steps: Any) -> None:
    job = await app.queue("anything").add({}, backoff=steps)
    assert job.backoff == Backoff("steps", steps=(60_000, 300_000, 900_000))


@pytest.mark.parametrize("job_id", ["order-42", "user@example.com/7", "заказ-42", "🐎", "x" * 255, "a.b_c-d"])
async def test_an_id_may_be_any_other_text(app: TestApp, job_id: str) -> None:
    await app.queue("anything").add({}, id=job_id)
    assert (await app.queue("anything").job(job_id)).id == job_id


async def test_data_that_does_not_fit_the_model_names_each_field(app: TestApp) -> None:
    with pytest.raises(InvalidJob) as refused:
        await app.queue("orders").add({"number": "many"})
    assert_one_sentence(refused.value, "handle", "number", "customer")


@pytest.mark.parametrize(
    "data", [{"a": object()}, {1: "a number as key", "x": {2, 3}}, b"\xff", float("nan")]
)
async def test_data_that_json_cannot_carry_is_refused_or_carried_faithfully(app: TestApp, data: Any) -> None:
    if isinstance(data, float):
        assert (await app.queue("anything").add(data)).data is None, "JSON has no such number"
        return
    with pytest.raises(InvalidJob) as refused:
        await app.queue("anything").add(data)
    assert_one_sentence(refused.value, "JSON")


async def test_a_large_payload_is_refused_with_its_size(app: TestApp) -> None:
    with pytest.raises(InvalidJob) as refused:
        await app.queue("anything").add({"body": "x" * 10_000_000})
    assert_one_sentence(refused.value, "anything/take", "10,000,0", "1,048,576")


async def test_one_bad_job_of_many_adds_none(app: TestApp) -> None:
    with pytest.raises(InvalidJob):
        await app.queue("orders").add_many([{"number": 1, "customer": "a"}, New({"number": 2})])
    assert (await app.queue("orders").stats())["waiting"] == 0


async def test_an_unknown_queue_names_those_there_are(app: TestApp) -> None:
    with pytest.raises(UnknownQueue) as refused:
        app.queue("order")
    assert_one_sentence(refused.value, "'order'", "anything", "notifications", "orders")


async def test_of_thousands_of_queues_some_are_named(app: TestApp) -> None:
    for number in range(2_000):
        app.define(f"tenant-{number}")
    with pytest.raises(UnknownQueue) as refused:
        app.queue("order")
    assert_one_sentence(refused.value, "'order'", "anything", " others")


async def test_an_unknown_job_is_named(app: TestApp) -> None:
    with pytest.raises(UnknownJob) as refused:
        await app.queue("orders").job("nobody")
    assert_one_sentence(refused.value, "orders", "'nobody'")


async def test_acts_that_do_not_fit_the_state_say_so(app: TestApp) -> None:
    job = await app.queue("anything").add({})
    for act in (job.promote, job.retry):
        with pytest.raises(WrongState) as refused:
            await act()
        assert_one_sentence(refused.value, job.id, "anything")
    await job.remove()
    with pytest.raises(WrongState) as refused:
        await job.cancel()
    assert_one_sentence(refused.value, job.id, "anything")


def declare(act: Callable[[Yamchi], Any]) -> YamchiError:
    with pytest.raises((ConfigurationError, InvalidJob)) as refused:
        act(TestApp())
    return refused.value


DECLARATIONS: dict[str, tuple[Callable[[Yamchi], Any], tuple[str, ...]]] = {
    "a cron line of words": (lambda app: app.cron("every monday"), ("'every monday'", "cron")),
    "a cron line out of range": (lambda app: app.cron("61 * * * *"), ("'61 * * * *'", "cron")),
    "a cron line that never comes": (lambda app: app.cron("0 0 30 2 *"), ("'0 0 30 2 *'", "cron")),
    "an empty cron line": (lambda app: app.cron(""), ("''", "cron")),
    "an unknown zone": (lambda app: app.cron("0 3 * * *", zone="Mars/Olympus"), ("'Mars/Olympus'",)),
    "a zone that is a path": (lambda app: app.cron("0 3 * * *", zone="../../etc/passwd"), ("zone",)),
    "a schedule's name of two lines": (lambda app: app.cron("0 3 * * *", name="a\nb")(print), (r"'a\nb'",)),
    "a schedule's name too long for an id": (
        lambda app: app.cron("0 3 * * *", name="x" * 250)(print),
        ("x" * 20,),
    ),
    "a rate of words": (lambda app: app.define("q", rate="fast"), ("'fast'", "30/s")),
    "a rate of nothing": (lambda app: app.define("q", rate="0/s"), ("'0/s'",)),
    "a rate without a period": (lambda app: app.define("q", rate="10/"), ("'10/'",)),
    "a rate of an odd period": (lambda app: app.define("q", rate="10/fortnight"), ("fortnight",)),
    "a rate per no time": (lambda app: app.define("q", rate="10/0s"), ("'10/0s'",)),
    "a key rate without a key": (lambda app: app.define("q", key_rate="1/s"), ("q", "key")),
    "no attempts": (lambda app: app.define("q", attempts=0), ("attempts", "0")),
    "no concurrency": (lambda app: app.define("q", concurrency=0), ("q", "concurrency", "0")),
    "a negative timeout": (lambda app: app.define("q", timeout=-1), ("timeout", "-1")),
    "an odd backoff": (lambda app: app.define("q", backoff={"type": "lunar"}), ("'lunar'",)),
    "an empty queue name": (lambda app: app.define(""), ("queue", "''")),
    "a queue name with a colon": (lambda app: app.define("a:b"), ("queue", "'a:b'")),
}


@pytest.mark.parametrize("what", DECLARATIONS)
def test_a_wrong_declaration_is_named(what: str) -> None:
    act, words = DECLARATIONS[what]
    assert_one_sentence(declare(act), *words)


def test_two_handlers_of_one_name_are_refused() -> None:
    def declare_twice(app: Yamchi) -> None:
        for _ in range(2):

            @app.job("orders", name="handle")
            async def handle(job: Job[Any]) -> None:
                """Nothing to do."""

    assert_one_sentence(declare(declare_twice), "orders", "'handle'")


def test_two_schedules_of_one_name_are_refused_though_their_queues_differ() -> None:
    def declare_twice(app: Yamchi) -> None:
        for queue in ("reports", "orders"):

            @app.cron("0 3 * * *", name="nightly", queue=queue)
            async def run() -> None:
                """Nothing to do."""

    assert_one_sentence(declare(declare_twice), "reports", "'nightly'")


def test_a_rate_reads_as_written() -> None:
    assert RateLimit.parse("100/15m") == RateLimit(100, 900_000, burst=1)


def two(job: Job[Order], other: int) -> None:
    """One argument too many."""


def keyword_only(*, job: Job[Order]) -> None:
    """None that is given by its place."""


DECLARED_WRONGLY: dict[str, tuple[Callable[[Yamchi], Any], tuple[str, ...]]] = {
    "a job without its queue": (lambda app: app.job(two), ("two", '@app.job("thumbnails")')),
    "a schedule without its times": (lambda app: app.cron(two), ("two", '@app.cron("0 3 * * *")')),
    "a handler of two arguments": (lambda app: app.job("orders", name="two")(two), ("two(job", "'other'")),
    "a handler of a keyword": (lambda app: app.job("orders", name="b")(keyword_only), ("b(*, job",)),
    "a schedule of two arguments": (lambda app: app.cron("0 3 * * *")(two), ("two(job", "with nothing")),
    "a concurrency of text": (lambda app: app.define("orders", concurrency="4"), ("'4'", "whole number")),
    "a concurrency of nothing": (lambda app: app.define("orders", concurrency=0), ("0", "at least 1")),
}


def test_an_application_of_a_url_is_told_where_it_goes() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Yamchi("redis://:hush@localhost")  # type: ignore[arg-type]
    assert_one_sentence(refused.value, "not a str", "QUEUE_URL", "Settings(default_queue_url=…)")
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("value", [4, None])
async def test_an_option_that_no_queue_has_is_told(app: TestApp, value: int | None) -> None:
    with pytest.raises(
        TypeError, match="Queue orders has no option concurency; there are: concurrency, attempts, "
    ):
        app.define("orders", concurency=value)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no option concurency"):
        app.job("orders", concurency=value)(two)  # type: ignore[call-arg]


async def test_every_option_of_a_queue_is_kept(app: TestApp) -> None:
    said = {"attempts": 7, "keep_completed": 8, "keep_failed": 9, "backoff": "5s", "timeout": "2m"}
    orders = app.define(
        "orders", concurrency=6, rate="3/s", key_rate="2/s", key="shop", topic="shop.orders", **said
    )
    options = JobOptions(7, Backoff("fixed", 5_000), 120_000, 8, 9)
    assert (orders.options, orders.timeout, orders.concurrency) == (options, 120_000, 6)
    assert (orders.rate, orders.key_rate) == (RateLimit.parse("3/s"), RateLimit.parse("2/s"))
    assert (orders.key, orders.topic) == ("shop", "shop.orders")
    assert app.define("orders", attempts=None, rate=None) is orders
    assert (orders.options, orders.rate) == (options, RateLimit.parse("3/s")), "what is not given stays"


@pytest.mark.parametrize("what", DECLARED_WRONGLY)
async def test_what_is_declared_wrongly_is_told_at_once(app: TestApp, what: str) -> None:
    declare, words = DECLARED_WRONGLY[what]
    with pytest.raises(ConfigurationError) as refused:
        declare(app)
    assert_one_sentence(refused.value, *words)
    assert list(app.queue("orders").definition.handlers) == ["handle"]
