"""Every environment variable the core reads, with its default and one sentence about it; a feature has its own `settings.py`.

Values come from the environment, then from the file `.env` in `YAMCHI_HOME` (the current folder if that is not set).
`QUEUE_URL_<QUEUE>` and `CONCURRENCY_<QUEUE>` exist once per queue: the queue's name in upper case, `-` written as `_`.
A wrong value is a `ConfigurationError` that names the variable and never shows a secret.
`python -m yamchi.envfile` prints those of the core and of every feature as an `.env` file: `make .env.example` keeps its output.
"""

import os
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, TypeGuard, TypeVar
from urllib.parse import quote, unquote

from dotenv import dotenv_values
from dotenv.parser import parse_stream
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from yamchi.clock import check_zone
from yamchi.errors import ConfigurationError
from yamchi.settingtypes import (
    Fallback,
    Home,
    LogFormat,
    LogLevel,
    Names,
    Origins,
    Proxies,
    PublicUrl,
    QueueUrl,
    Quota,
    RateOrOff,
    ServerUrl,
    Span,
    Tokens,
    check_positive,
    check_previous_keys,
    lower,
    read_level,
)
from yamchi.textfiles import read_text

F = TypeVar("F", bound="FeatureSettings")

PER_QUEUE = "<QUEUE>"
_POSTGRESQL = re.compile(r"postgres(ql)?(\+\w+)?://")


class Environment(BaseModel):
    """Reads its fields from the environment and from the `.env` of a home; a wrong value is one sentence."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True, validate_default=True)

    def __init__(self, env_file: Path | None, values: Mapping[str, Any]) -> None:
        fields = type(self).model_fields
        given = {str(fields[name].validation_alias or name): value for name, value in values.items()}
        try:
            super().__init__(**_values_of(fields, _read_variables(env_file)) | given)
        except ValidationError as error:
            raise ConfigurationError(_explain(error)) from None

    def required(self, variable: str) -> str:
        """The value of a variable that the part which asks for it can't do without."""
        value = getattr(self, variable.lower())
        if value is None:
            raise ConfigurationError(f"{variable} must be set")
        return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


class FeatureSettings(Environment):
    """Base of a feature's settings: fields with a `description`, read from where the core's come from.

    Ask for them with `settings.of(MediaSettings)`. What a test gives to `Settings(…)` under their names is theirs.
    """

    def __init__(self, env_file: Path | None, values: Mapping[str, Any]) -> None:
        super().__init__(env_file, values)


class Settings(Environment):
    """What the operator decided. Read once at start; never changes while Yamchi runs."""

    # A secret is a SecretStr; a URL that may hold a password stays out of repr.

    home: Home = Field(
        default=Path("."),
        validation_alias="YAMCHI_HOME",
        description="The folder that holds var/, public/uploads/ and your templates, scenarios and rules; the current folder by default.",
    )
    host: str = Field(
        default="127.0.0.1",
        description="The address the board and the API listen on; any but a loopback address needs ADMIN_TOKEN.",
    )
    port: int = Field(
        default=3030, ge=0, le=65535, description="The port of the board and the API; 0 takes a free one."
    )

    default_queue_url: QueueUrl | None = Field(
        default=None,
        repr=False,
        validation_alias="QUEUE_URL",
        description="Where jobs wait: sqlite:///var/yamchi.db, memory://, redis://host:6379, postgresql://user:password@host/db, kafka://host:9092 or supabase; by default Redis if REDIS_URL or REDIS_HOST is set, else PostgreSQL if DATABASE_URL is, else Supabase if SUPABASE_URL is, else SQLite.",
    )
    queue_urls: dict[str, QueueUrl] = Field(
        default={},
        repr=False,
        validation_alias=f"QUEUE_URL_{PER_QUEUE}",
        description="The same for one queue, for example QUEUE_URL_NOTIFICATIONS=kafka://localhost:9092.",
    )
    queue_fallback: Annotated[Fallback, BeforeValidator(lower)] = Field(
        default="sqlite",
        description="Where jobs go while the broker can't be reached: sqlite (survives a crash), memory, or off.",
    )
    redis_url: ServerUrl | None = Field(
        default=None,
        repr=False,
        pattern=r"^rediss?(\+sentinel)?://",
        description="Redis, as one URL: redis://:password@host:6379/0.",
    )
    redis_host: str | None = Field(
        default=None, description="Redis, in parts: its host, if REDIS_URL is not set."
    )
    redis_port: int = Field(default=6379, ge=1, le=65535, description="The port at REDIS_HOST.")
    redis_password: SecretStr | None = Field(default=None, description="The password at REDIS_HOST.")
    database_url: ServerUrl | None = Field(
        default=None,
        repr=False,
        description="The database for Yamchi's own tables; SQLite in var/ by default.",
    )
    supabase_url: str | None = Field(
        default=None,
        pattern="^https?://",
        description="The Supabase project whose queues are read over REST.",
    )
    supabase_service_role_key: SecretStr | None = Field(
        default=None, description="The service_role key of the Supabase project."
    )

    plugins: Names | None = Field(
        default=None,
        description="The features to run, separated by commas, for example notifications; by default all that ship or are installed, and none with none.",
    )

    public_url: PublicUrl | None = Field(
        default=None,
        description="Where people reach this server, for example https://notify.example.com: links in messages begin with it. Without it only letters in the mailbox have a link to unsubscribe.",
    )
    default_timezone: Annotated[str, AfterValidator(check_zone)] = Field(
        default="UTC",
        description="The time zone of people whose own is not known, for quiet hours and digests.",
    )

    lease: Annotated[Span, AfterValidator(check_positive)] = Field(
        default=timedelta(seconds=30),
        description="How long a job belongs to a worker that gives no sign of life; then another takes it.",
    )
    shutdown_timeout: Span = Field(
        default=timedelta(seconds=30),
        description="How long running jobs may go on after SIGTERM; the rest return to their queues.",
    )
    job_timeout: Span = Field(
        default=timedelta(hours=1),
        description="How long a run may take where neither the job nor its queue says; 0 for as long as it likes.",
    )
    concurrencies: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default={},
        validation_alias=f"CONCURRENCY_{PER_QUEUE}",
        description="How many jobs of one queue run at once in a worker, for example CONCURRENCY_MEDIA_SYNC=5.",
    )
    worker_interval_ms: int = Field(
        default=5000,
        ge=1,
        description="Milliseconds between two looks at a queue that can't wake its worker.",
    )
    worker_max_tasks: int = Field(
        default=10, ge=1, description="The most jobs taken from such a queue in one cycle."
    )

    log_format: Annotated[LogFormat, BeforeValidator(lower)] = Field(
        default="console",
        description="console ([INFO] …, colored on a terminal) or json (an object per line).",
    )
    log_level: Annotated[LogLevel, BeforeValidator(read_level)] = Field(
        default="info",
        description="The least important lines to show: debug, info, warning, error or critical.",
    )

    admin_token: SecretStr | None = Field(
        default=None,
        description="The bearer token that may do everything, and signs in to the board; at least 16 characters where others can reach it.",
    )
    api_tokens: Tokens = Field(
        default=(),
        description="Bearer tokens, separated by commas, of callers that may only send; needs ADMIN_TOKEN. Keys made with yamchi keys can do more and less.",
    )
    rate_limit_send: RateOrOff = Field(
        default=Quota(5_000, 1_000),
        description="How many requests that send a key may make, in each process; or off.",
    )
    rate_limit_read: RateOrOff = Field(
        default=Quota(500, 1_000), description="The same for requests that only look."
    )
    rate_limit_change: RateOrOff = Field(
        default=Quota(200, 1_000), description="The same for requests that change something."
    )
    rate_limit_person: RateOrOff = Field(
        default=Quota(50, 1_000),
        description="The same for the pages of one person, with that person's token.",
    )
    audit_keep: Annotated[Span, AfterValidator(check_positive)] = Field(
        default=timedelta(days=365), description="How long the audit keeps who changed what."
    )

    secret_key: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="Signs the tokens of pages and the links in letters; by default a key that is made once and kept in the database.",
    )
    secret_key_previous: Annotated[Tokens, AfterValidator(check_previous_keys)] = Field(
        default=(),
        description="Keys that SECRET_KEY was before, separated by commas: what they signed is still good. The word kept stands for the key in the database.",
    )
    forwarded_allow_ips: Proxies = Field(
        default=("127.0.0.1", "::1"),
        description="Addresses or networks of your proxies, separated by commas, whose X-Forwarded-For and X-Forwarded-Proto are believed; * for everybody's.",
    )
    cors_origins: Origins = Field(
        default=(),
        description="Origins of your product's pages, separated by commas, whose inbox may use this server from there, for example https://shop.example; by default only pages of this server's own origin.",
    )

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)  # values under names that are not the core's
    _features: dict[type[FeatureSettings], FeatureSettings] = PrivateAttr(default_factory=dict)

    def __init__(self, **values: Any) -> None:
        home = Path(values.get("home") or os.environ.get("YAMCHI_HOME") or ".").expanduser()
        own = {name: value for name, value in values.items() if name in type(self).model_fields}
        super().__init__(home / ".env", own)
        self._given.update({name: value for name, value in values.items() if name not in own})

    def of(self, kind: type[F]) -> F:
        """The settings of a feature, read once."""
        if kind not in self._features:
            given = {name: value for name, value in self._given.items() if name in kind.model_fields}
            self._features[kind] = kind(self.home / ".env", given)
        found = self._features[kind]
        assert isinstance(found, kind)
        return found

    def check_given(self, kinds: Iterable[type[FeatureSettings]]) -> None:
        """Refuse values given under names that neither the core nor these features know."""
        fields = {name: field for kind in (type(self), *kinds) for name, field in kind.model_fields.items()}
        if unknown := sorted(self._given.keys() - fields.keys()):
            named = {variable_of(name, field).lower(): name for name, field in fields.items()}
            hints = [f" {one.upper()} is {named[one.lower()]}." for one in unknown if one.lower() in named]
            raise TypeError(f"Settings has no field {', '.join(unknown)}.{''.join(hints)}")

    @property
    def var(self) -> Path:
        """Where Yamchi keeps what it writes: the database, the spool, the mailbox."""
        return self.home / "var"

    def queue_url(self, queue: str) -> str:
        """The URL of the engine on which this queue lives."""
        url = (
            self.queue_urls.get(_variable_part(queue))
            or self.default_queue_url
            or self._redis()
            or self._postgresql()
            or self._supabase()
        )
        return self._resolve(url or "sqlite:///var/yamchi.db")

    @property
    def all_queue_urls(self) -> list[str]:
        """Every URL that was given for queues, by whatever variable."""
        given = (
            self.default_queue_url,
            *self.queue_urls.values(),
            self._redis(),
            self._postgresql(),
            self._supabase(),
        )
        return [url for url in given if url]

    @property
    def tables_url(self) -> str:
        """The URL of Yamchi's own tables."""
        return self._resolve(self.database_url or "sqlite:///var/data.db")

    def concurrency(self, queue: str, default: int) -> int:
        """How many jobs of this queue run at once in one worker."""
        return self.concurrencies.get(_variable_part(queue), default)

    def _supabase(self) -> str | None:
        return "supabase" if self.supabase_url else None

    def _redis(self) -> str | None:
        if self.redis_url or not self.redis_host:
            return self.redis_url
        password = (
            f":{quote(self.redis_password.get_secret_value(), safe='')}@" if self.redis_password else ""
        )
        host = f"[{self.redis_host}]" if ":" in self.redis_host else self.redis_host
        return f"redis://{password}{host}:{self.redis_port}"

    def _postgresql(self) -> str | None:
        return self.database_url if _POSTGRESQL.match(self.database_url or "") else None

    def _resolve(self, url: str) -> str:
        """One spelling for PostgreSQL, and SQLite's relative paths begin at home, whatever the current folder is."""
        if url.startswith("sqlite:///"):
            path = self.home / unquote(url.removeprefix("sqlite:///"))
            return f"sqlite:///{quote(path.as_posix(), safe='/:')}"
        return _POSTGRESQL.sub("postgresql://", url, count=1)


def _read_variables(env_file: Path | None) -> dict[str, str]:
    """What is set, by its name in lower case. The environment wins over the file, and an empty value is no value."""
    in_file = read_env_file(env_file)
    return {name.lower(): value for place in (in_file, os.environ) for name, value in place.items() if value}


def _is_set(env_file: Path | None) -> TypeGuard[Path]:
    """Whether there is such a file. A folder `.env` is none: many keep Python's packages in one of that name."""
    return env_file is not None and os.path.lexists(env_file) and not env_file.is_dir()


def read_env_file(path: Path | None) -> dict[str, str | None]:
    """What a `.env` sets. A line that can't be read is an error: what it was to set, and perhaps what follows, would be missing."""
    if not _is_set(path):
        return {}
    text = read_text(path)
    for statement in parse_stream(StringIO(text)):
        if statement.error:
            line = statement.original.line
            raise ConfigurationError(
                f"{path}, line {line} can't be read: write NAME=value, and close the quotes that you open."
            )
    return dotenv_values(stream=StringIO(text))


def _values_of(fields: Mapping[str, FieldInfo], found: Mapping[str, str]) -> dict[str, Any]:
    """What was found for these fields, by the name under which pydantic takes it."""
    values: dict[str, Any] = {}
    for name, field in fields.items():
        variable = variable_of(name, field).lower()
        taken_as = str(field.validation_alias or name)
        if variable.endswith(PER_QUEUE.lower()):
            prefix = variable.removesuffix(PER_QUEUE.lower())
            values[taken_as] = {
                one[len(prefix) :]: text for one, text in found.items() if one.startswith(prefix)
            }
        elif variable in found:
            values[taken_as] = found[variable]
    return values


def variable_of(name: str, field: FieldInfo) -> str:
    return field.validation_alias if isinstance(field.validation_alias, str) else name.upper()


def _variable_part(queue: str) -> str:
    """How a queue is named inside a variable, in lower case."""
    return re.sub(r"\W", "_", queue).lower()


def _explain(error: ValidationError) -> str:
    return " ".join(map(_explain_one, error.errors(include_input=False)))


def _explain_one(problem: ErrorDetails) -> str:
    place, *inside = map(str, problem["loc"])
    variable = place.upper().replace(PER_QUEUE, "".join(inside[:1]).upper())
    reason = problem["msg"].removeprefix("Value error, ").replace("Input should", "it should").rstrip(".")
    return f"{variable} has a value that can't be used: {reason}."
