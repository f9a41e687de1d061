"""Settings: where values come from, which engine a queue gets, and what a wrong value says."""

import asyncio
import traceback
from datetime import timedelta
from pathlib import Path

import pytest

from yamchi import Yamchi
from yamchi.cli.serving import make_server
from yamchi.envfile import all_settings, env_example
from yamchi.errors import ConfigurationError
from yamchi.settings import Environment, FeatureSettings, Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch):
    def set_all(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


# ── Where values come from ────────────────────────────────────────────────────────────────────────────────────────


def test_the_defaults_are_those_of_the_contract(own_home):
    settings = Settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 3030)
    assert (settings.lease, settings.shutdown_timeout) == (timedelta(seconds=30), timedelta(seconds=30))
    assert (settings.queue_fallback, settings.log_format, settings.log_level) == ("sqlite", "console", "info")
    assert (settings.worker_interval_ms, settings.worker_max_tasks) == (5000, 10)
    assert (settings.home, settings.var) == (own_home, own_home / "var")
    assert settings.admin_token is None
    assert settings.api_tokens == ()


def test_without_a_home_it_is_the_current_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("YAMCHI_HOME")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("PORT=4000")
    assert (Settings().home, Settings().port) == (tmp_path, 4000)


def test_the_environment_wins_over_the_file_in_home(own_home, environ):
    (own_home / ".env").write_text("PORT=4000\nHOST=::1\nSOMEBODY_ELSES=1\n")
    environ(PORT="5000")
    assert (Settings().host, Settings().port) == ("::1", 5000)


def test_proxies_are_believed_by_the_file(own_home):
    (own_home / ".env").write_text("FORWARDED_ALLOW_IPS=203.0.113.7, 10.0.0.0/8\n")
    seen = []

    async def web(scope, _receive, _send):
        seen.append(scope["client"][0])

    config = make_server(web, Settings()).config
    config.load()
    for address in ("203.0.113.7", "10.1.2.3", "127.0.0.1"):
        headers = [(b"x-forwarded-for", b"198.51.100.9")]
        scope = {"type": "http", "scheme": "http", "client": (address, 1), "headers": headers}
        asyncio.run(config.loaded_app(scope, None, None))
    assert seen == ["198.51.100.9", "198.51.100.9", "127.0.0.1"]
    (own_home / ".env").write_text("FORWARDED_ALLOW_IPS=proxy.example\n")
    with pytest.raises(ConfigurationError, match=r"FORWARDED_ALLOW_IPS.*10\.0\.0\.0/8"):
        Settings()


def test_an_argument_wins_over_everything_and_brings_its_own_file(tmp_path, environ):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".env").write_text("PORT=4000")
    environ(HOST="::1")
    settings = Settings(home=elsewhere, host="localhost")
    assert (settings.home, settings.host, settings.port) == (elsewhere, "localhost", 4000)


def test_an_unknown_argument_is_a_mistake():
    with pytest.raises(TypeError, match="has no field queue_uri"):
        Yamchi(Settings(queue_uri="memory://"))
    with pytest.raises(TypeError, match=r"has no field queue_url\. QUEUE_URL is default_queue_url\.$"):
        Yamchi(Settings(queue_url="memory://"))


def test_an_empty_value_is_no_value(environ):
    environ(PORT="", REDIS_URL="", QUEUE_URL_MEDIA_SYNC="", CONCURRENCY_MEDIA_SYNC="")
    settings = Settings()
    assert settings.port == 3030
    assert settings.queue_url("media-sync").startswith("sqlite:")
    assert settings.concurrency("media-sync", default=5) == 5


@pytest.mark.parametrize(
    ("text", "seconds"), [("45", 45), ("1.5", 1.5), ("250ms", 0.25), ("1m30s", 90), ("2h", 7200)]
)
def test_a_span_is_seconds_or_text(environ, text, seconds):
    environ(SHUTDOWN_TIMEOUT=text)
    assert Settings().shutdown_timeout.total_seconds() == seconds


def test_levels_are_read_as_people_write_them(environ):
    environ(LOG_LEVEL="WARN", LOG_FORMAT="JSON", QUEUE_FALLBACK="Off")
    settings = Settings()
    assert (settings.log_level, settings.log_format, settings.queue_fallback) == ("warning", "json", "off")


# ── Which engine a queue gets ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({}, "sqlite:///{home}/var/yamchi.db"),
        ({"DATABASE_URL": "postgresql://u:p@db/app"}, "postgresql://u:p@db/app"),
        ({"DATABASE_URL": "postgres://db/app"}, "postgresql://db/app"),
        ({"DATABASE_URL": "postgresql+psycopg://db/app"}, "postgresql://db/app"),
        ({"DATABASE_URL": "sqlite:///other.db"}, "sqlite:///{home}/var/yamchi.db"),
        ({"DATABASE_URL": "postgresql://db/app", "REDIS_HOST": "cache"}, "redis://cache:6379"),
        (
            {"REDIS_HOST": "::1", "REDIS_PORT": "6380", "REDIS_PASSWORD": "p@ss:/"},
            "redis://:p%40ss%3A%2F@[::1]:6380",
        ),
        ({"REDIS_HOST": "cache", "REDIS_URL": "rediss://:pw@other/2"}, "rediss://:pw@other/2"),
        ({"REDIS_URL": "redis://cache", "QUEUE_URL": "kafka://a:9092,b:9092"}, "kafka://a:9092,b:9092"),
        ({"QUEUE_URL": "supabase"}, "supabase"),
        ({"QUEUE_URL": "memory://"}, "memory://"),
        ({"QUEUE_URL": "sqlite:///jobs.db"}, "sqlite:///{home}/jobs.db"),
        ({"QUEUE_URL": "sqlite:////srv/jobs.db"}, "sqlite:////srv/jobs.db"),
        ({"QUEUE_URL": "memory://", "QUEUE_URL_MEDIA_SYNC": "redis://cache"}, "redis://cache"),
    ],
)
def test_the_engine_of_a_queue(own_home, environ, variables, url):
    environ(**variables)
    assert Settings().queue_url("media-sync") == url.format(home=own_home)


def test_a_home_with_odd_characters_makes_a_proper_url(tmp_path):
    settings = Settings(home=tmp_path / "50% #1 да", default_queue_url="sqlite:///my%20jobs.db")
    assert (
        settings.queue_url("media-sync") == f"sqlite:///{tmp_path}/50%25%20%231%20%D0%B4%D0%B0/my%20jobs.db"
    )


@pytest.mark.parametrize(
    ("queue", "variable"),
    [
        ("media-sync", "MEDIA_SYNC"),
        ("emailChain", "EMAILCHAIN"),
        ("notifications.outbox", "NOTIFICATIONS_OUTBOX"),
    ],
)
def test_a_queue_can_have_variables_of_its_own_in_both_places(own_home, environ, queue, variable):
    (own_home / ".env").write_text(f"CONCURRENCY_{variable}=7\nQUEUE_URL_{variable}=redis://from-file\n")
    environ(**{f"QUEUE_URL_{variable}": "memory://"})
    settings = Settings()
    assert settings.queue_url(queue) == "memory://"
    assert settings.concurrency(queue, default=5) == 7
    assert settings.concurrency("another", default=5) == 5


# ── What a wrong or missing value says ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("PORT", "high", "valid integer"),
        ("PORT", "70000", "less than or equal to 65535"),
        ("LEASE", "soon", "'soon' is not a span of time"),
        ("LEASE", "0", "greater than 0"),
        ("QUEUE_FALLBACK", "disk", "'sqlite', 'memory' or 'off'"),
        ("QUEUE_URL", "sqlite://jobs.db", "begin it with sqlite:///"),
        ("QUEUE_URL_MEDIA_SYNC", "localhost:6379", "begin it with sqlite:///"),
        ("CONCURRENCY_MEDIA_SYNC", "0", "greater than or equal to 1"),
        ("LOG_LEVEL", "loud", "'debug', 'info'"),
    ],
)
def test_a_wrong_value_is_one_sentence_that_names_the_variable(environ, variable, value, reason):
    environ(**{variable: value})
    with pytest.raises(ConfigurationError) as caught:
        Settings()
    sentence = str(caught.value)
    assert sentence.startswith(f"{variable} has a value that can't be used: ")
    assert sentence.endswith(".")
    assert reason in sentence
    assert "\n" not in sentence


def test_a_scheme_that_no_engine_has_is_told_when_the_application_is_made(environ):
    environ(QUEUE_URL_MEDIA_SYNC="redsi://:hush@cache")
    with pytest.raises(ConfigurationError, match="redsi://… is not known: use sqlite:///") as caught:
        Yamchi()
    assert "hush" not in str(caught.value)


def test_a_file_that_is_not_text_is_named(own_home):
    (own_home / ".env").write_bytes(b"PORT=\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"\.env can't be read"):
        Settings()


@pytest.mark.parametrize("line", ['LEASE="30s', "LEASE 30s"])
def test_a_line_that_can_not_be_read_is_named(own_home, line):
    """It is not left out: what it was to set would be missing, and what follows it too."""
    (own_home / ".env").write_text(f"HOST=::1\n{line}\nPORT=4000\n")
    with pytest.raises(ConfigurationError, match=r"\.env, line 2 can't be read: write NAME=value"):
        Settings()


def test_no_secret_appears_in_repr_or_in_an_error(environ):
    environ(
        ADMIN_TOKEN="hush-admin",
        API_TOKENS="hush-one, hush-two",
        REDIS_PASSWORD="hush-redis",
        SUPABASE_SERVICE_ROLE_KEY="hush-key",
        DATABASE_URL="postgresql://u:hush@db/app",
        QUEUE_URL="redis://:hush@cache",
        QUEUE_URL_WATERMARK="redis://:hush@cache",
    )
    settings = Settings()
    assert [token.get_secret_value() for token in settings.api_tokens] == ["hush-one", "hush-two"]
    assert "hush" not in f"{settings!r} {settings}"
    environ(QUEUE_URL="redis:hush@cache", QUEUE_URL_WATERMARK="x:hush@cache", REDIS_URL="hush")
    with pytest.raises(ConfigurationError) as caught:
        Settings()
    assert "hush" not in "".join(traceback.format_exception(caught.value))


def test_a_required_variable_that_is_missing_is_named(environ):
    with pytest.raises(ConfigurationError, match=r"^SUPABASE_SERVICE_ROLE_KEY must be set$"):
        Settings().required("SUPABASE_SERVICE_ROLE_KEY")
    environ(SUPABASE_SERVICE_ROLE_KEY="key")
    assert Settings().required("SUPABASE_SERVICE_ROLE_KEY") == "key"


# ── The example file ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_example_file_is_up_to_date():
    assert (ROOT / ".env.example").read_text() == env_example(), "run: make .env.example"


def test_every_variable_is_described_in_one_sentence():
    for kind in all_settings():
        for name, field in kind.model_fields.items():
            assert (field.description or "").endswith("."), name


def test_the_example_with_every_default_uncommented_changes_nothing(own_home, monkeypatch):
    monkeypatch.chdir(own_home)
    plain = _all_settings_read()
    assigned = [
        line[2:] for line in env_example().splitlines() if line.startswith("# ") and "=" in line.split()[1]
    ]
    (own_home / ".env").write_text("\n".join(assigned))
    assert "PORT=3030" in assigned
    assert _all_settings_read() == plain


def _all_settings_read() -> list[Environment]:
    settings = Settings()
    features = [kind for kind in all_settings() if issubclass(kind, FeatureSettings)]
    return [settings, *(settings.of(kind) for kind in features)]
