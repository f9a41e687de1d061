"""Secrets are not kept where others read: errors, stacks and logs of jobs, dead letters, files, settings that can't be read."""

import stat
from pathlib import Path
from typing import Any

import pytest

from yamchi import Yamchi
from yamchi.errors import ConfigurationError, Outage, Unrecoverable
from yamchi.http.apikeys import ApiKeys
from yamchi.http.signing import Signer
from yamchi.observe.logging import LONGEST_MASKED
from yamchi.queues.engines.sqlite import SqliteEngine
from yamchi.queues.job import Job
from yamchi.queues.verdicts import LONGEST_TRACE, trace
from yamchi.settings import Settings
from yamchi.testing import MovableClock, TestApp

SECRET = "hunter2hunter2"
SAID = f"redis://app:{SECRET}@cache:6379 answered; Authorization: Bearer {SECRET}; password={SECRET}"


async def test_what_a_failed_job_said_is_kept_without_secrets(tmp_path: Path) -> None:
    async with TestApp(home=tmp_path) as app:

        @app.job("letters", attempts=2, backoff=0)
        async def post(job: Job[Any]) -> None:
            await job.log(f"using {SAID}", "and nothing else")
            raise {"once": ValueError, "never": Unrecoverable}[job.data](SAID)

        for kind in ("once", "never"):
            await app.queue("letters").add(kind, id=kind)
            await app.drain()
            job = await app.queue("letters").job(kind)
            letter = await app.queue("letters").dead_letters.get(kind)
            kept = f"{job.to_dict()} {letter}"
            assert SECRET not in kept
            assert "cache:6379 answered" in (job.failed_reason or "")
            assert "redis://app:***@cache:6379" in (job.stacktrace or "")
            assert "and nothing else" in job.logs


def test_a_secret_is_masked_before_its_end_is_cut_from_what_names_it() -> None:
    """Of a long trace the end is kept, which does not say that it is a password."""
    try:
        raise ValueError(f"password={SECRET * LONGEST_TRACE}"[: LONGEST_MASKED // 2])
    except ValueError as error:
        kept = trace(error)
    assert kept is not None
    assert SECRET not in kept


async def test_what_an_outage_said_is_kept_without_secrets(tmp_path: Path) -> None:
    async with TestApp(home=tmp_path) as app:

        @app.job("letters")
        async def post(job: Job[Any]) -> None:
            raise Outage(SAID)

        await app.queue("letters").add(1, id="out")
        await app.drain()
        assert SECRET not in str((await app.queue("letters").job("out")).to_dict())


async def test_a_key_of_ours_in_an_error_is_not_kept(tmp_path: Path) -> None:
    async with TestApp(home=tmp_path) as app:
        _, text = await ApiKeys(app.database, app.clock).create("shop", ["send"], by="test")
        token = (await app.notifications.persons.mint("f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001"))[0]

        @app.job("letters", attempts=1)
        async def post(job: Job[Any]) -> None:
            raise ValueError(f"{text} was refused, and so was {token}")

        await app.queue("letters").add(1, id="a")
        await app.drain()
        kept = str((await app.queue("letters").job("a")).to_dict())
        assert text.rpartition("_")[2] not in kept
        assert token.rpartition(".")[2] not in kept


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_only_their_owner_reads_the_files(tmp_path: Path) -> None:
    async with Yamchi(Settings(home=tmp_path)) as app:
        app.define("hello")
        await app.queue("hello").add({})
        await app.database.open()
        await app.database.write(lambda connection: None)
        spool = SqliteEngine(app.settings.var / "spool.db", app.clock)
        await spool.open()
        found = {path.name: oct(rights(path)) for path in app.settings.var.iterdir()}
        await spool.close()
    assert oct(rights(tmp_path / "var")) == "0o700"
    assert {"data.db", "yamchi.db", "yamchi.db-wal", "yamchi.db-shm", "spool.db"} <= found.keys()
    assert set(found.values()) == {"0o600"}, found


async def test_files_of_before_are_closed_to_others(tmp_path: Path) -> None:
    var = tmp_path / "var"
    var.mkdir(mode=0o755)
    for name in ("data.db", "yamchi.db"):
        (var / name).touch()
        (var / name).chmod(0o644)
    async with Yamchi(Settings(home=tmp_path)) as app:
        app.define("hello")
        await app.queue("hello").add({})
        await app.database.open()
    assert [oct(rights(path)) for path in (var, var / "data.db", var / "yamchi.db")] == [
        "0o700",
        "0o600",
        "0o600",
    ]


async def test_a_folder_of_somebody_elses_is_left_as_it_is(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    engine = SqliteEngine(shared / "jobs.db", MovableClock())
    await engine.open()
    await engine.close()
    assert (oct(rights(shared)), oct(rights(shared / "jobs.db"))) == ("0o755", "0o600")


@pytest.mark.parametrize("variable", ["default_queue_url", "redis_url", "database_url"])
@pytest.mark.parametrize(
    "password",
    ["se/cret", "se?cret", "se#cret", "se@cret", "12/se@cret", "se[cret", "se cret", "1234/secret"],
)
@pytest.mark.parametrize("host", ["cache:6379", "cache", "one:26379,two:26379"])
def test_a_url_whose_password_breaks_it_is_not_shown(variable: str, password: str, host: str) -> None:
    scheme = "postgresql" if variable == "database_url" else "redis"
    with pytest.raises(ConfigurationError) as refused:
        Settings(**{variable: f"{scheme}://app:{password}@{host}/0"})
    assert "percent-encoded" in str(refused.value)
    for part in ("cret", "1234", "app", "cache"):
        assert part not in str(refused.value).replace("percent-encoded", "")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:p%40ss@host:6379/0",
        "redis://host",
        "rediss+sentinel://:x@one:26379,two:26379/mymaster?sentinel_password=y",
        "redis://[::1]:6379/0",
        "kafka://user:pass@one:9092,two:9092?group=a",
        "postgresql://user:p%2Fw@host:5432/db?sslmode=require",
        "postgresql://user@/db?host=/var/run/postgresql",
        "sqlite:///var/a@b.db",
        "memory://",
        "supabase",
    ],
)
def test_a_url_that_can_be_read_is_taken(url: str) -> None:
    assert Settings(default_queue_url=url).default_queue_url == url


async def test_what_was_signed_with_the_key_before_is_still_good(tmp_path: Path) -> None:
    old, new, lost = ("the key of before", "the key of today!", "a key of long ago")
    async with TestApp(home=tmp_path, secret_key=old) as app:
        mark = await app.notifications.signer.sign("link", "user 1")
    async with TestApp(home=tmp_path, secret_key=new, secret_key_previous=(lost, old)) as app:
        signer: Signer = app.notifications.signer
        assert await signer.is_genuine("link", "user 1", mark)
        assert not await signer.is_genuine("link", "user 2", mark)
        assert not await signer.is_genuine("another purpose", "user 1", mark)
        assert await signer.is_genuine("link", "user 1", await signer.sign("link", "user 1"))
    async with TestApp(home=tmp_path, secret_key=new) as app:
        assert not await app.notifications.signer.is_genuine("link", "user 1", mark)


async def test_the_key_that_was_kept_can_be_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TestApp(home=tmp_path) as app:
        mark = await app.notifications.signer.sign("link", "user 1")
    async with TestApp(home=tmp_path, secret_key="the key of today!", secret_key_previous=("kept",)) as app:
        signer = app.notifications.signer
        assert await signer.is_genuine("link", "user 1", mark)
        monkeypatch.setattr(app.database, "write", None)
        assert not await signer.is_genuine("link", "user 1", "forged"), "without a transaction"


def test_a_key_of_before_is_long_enough() -> None:
    with pytest.raises(ConfigurationError, match="SECRET_KEY_PREVIOUS"):
        Settings(secret_key_previous=("short",))
