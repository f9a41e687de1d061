"""One pipe for every log line, whoever wrote it: structlog, the standard library, uvicorn.

`configure("console")` prints `[INFO] message key=value`, colored on a terminal only; `configure("json")` prints one
object per line with `timestamp`, `level`, `logger`, `event` and the keys. `fields={…}` are keys for JSON alone: what the
sentence says already, for machines to search by. Secrets are masked on the way out.
A line below the level costs one call that does nothing. Run uvicorn with `log_config=None`, or it opens its own pipe.
"""

import json
import logging
import os
import re
import sys
from functools import lru_cache
from typing import Any, TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from yamchi.settingtypes import LogFormat, LogLevel

MASK = "***"

HTTP_CLIENT = "httpx2"
"""Its logger has a line for every request: each look into a queue over REST would be one."""

FIELDS = "fields"
"""The keyword of a log call for keys that only JSON has."""

_SECRET_WORDS = r"password|passwd|secret|token|authorization|cookie|api_?key|private_?key|service_role_key"
_SECRET_KEY = re.compile(_SECRET_WORDS, re.IGNORECASE)
LONGEST_REMEMBERED = 100
"""Characters of a field's name of which it is remembered whether it names a secret: senders choose such names."""

_SECRET_TEXT = re.compile(
    r"(?P<url>://[^\s:/@]*:)[^\s/]*(?=@)"  # redis://user:password@host
    r"|(?P<bot>/bot\d+:)[\w-]+"  # api.telegram.org/bot1234:token/sendMessage
    r"|(?P<key>\byk_(?:test_)?[0-9a-f]+_)[0-9a-f]+"  # a named key of ours
    r"|(?P<person>\bperson\.\d+\.[0-9a-f-]+\.)[0-9a-f]{16,}"  # the token of a person's page
    r"|(?P<bearer>\b(?:Bearer|Basic)\s+)[\w.~+/=-]{6,}"
    rf"|(?P<quoted>(?:{_SECRET_WORDS})\\*[\"']?\s*[:=]\s*(?P<open>\\*[\"']))"  # {'password': 'two words'}
    r"(?:(?!(?<!\\)(?P=open))[\s\S])*"  # up to the same quote, which is \" in JSON within JSON
    rf"|(?P<number>(?:{_SECRET_WORDS})\\*[\"']\s*:\s*)-?\d[\d.]*"  # {"token": 123456}
    rf"|(?P<pair>(?:{_SECRET_WORDS})=)[^\s&\"',;]+",  # ?token=abc
    re.IGNORECASE,
)
_SIGNS_OF_SECRETS = (":", "=", "yk_", "person.", "bearer", "basic")
"""Every secret that the expression above finds has one of these in it, in capitals or not."""

LONGEST_MASKED = 200_000
"""Characters of a text that are looked through for secrets: nothing can interrupt that. The rest is not said."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""The latter are lines' ends and turns of direction."""
_PLAIN = re.compile(r"[^\s\"'=]+")

_COLORS = {
    "debug": "\x1b[2m",
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[1;31m",
}
_RESET = "\x1b[0m"
# Dataclasses go through _text, so that their fields are masked as well.
_JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS

# The same list for ever: loggers that are already in use keep a reference to it.
_COMMON: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
]
_STRUCTLOG: list[Processor] = [
    structlog.stdlib.filter_by_level,
    *_COMMON,
    structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
]


def configure(format: LogFormat = "console", level: LogLevel = "info", stream: TextIO | None = None) -> None:
    """Send every log line of this process to `stream` (standard error by default); may be called again."""
    pipe = _Pipe(stream or sys.stderr)
    pipe.format_name = format
    pipe.setFormatter(_formatter(format, pipe.stream))
    root = logging.getLogger()
    root.handlers = [*(handler for handler in root.handlers if not isinstance(handler, _Pipe)), pipe]
    root.setLevel(level.upper())
    _adopt("uvicorn", "uvicorn.error", "uvicorn.access")
    logging.getLogger(HTTP_CLIENT).setLevel(logging.NOTSET if level == "debug" else logging.WARNING)
    structlog.configure(
        processors=_STRUCTLOG,
        # Its level is kept by loggers in use: the one that counts is the root's, which a second call changes for all.
        wrapper_class=structlog.make_filtering_bound_logger("debug"),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def configure_unless_done(format: LogFormat, level: LogLevel) -> None:
    """The same for a program that has set up neither structlog nor logging. One that has keeps what it has: where that is
    logging alone, our lines go to its handlers, at its level; by itself structlog would write them to standard output.
    """
    if structlog.is_configured():
        return
    if not logging.getLogger().handlers:
        configure(format, level)
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            _mask_event,
            _render_text,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def configured_format() -> LogFormat:
    """How this process writes its lines."""
    pipes = [handler for handler in logging.getLogger().handlers if isinstance(handler, _Pipe)]
    return pipes[0].format_name if pipes else "console"


def mask(value: Any) -> Any:
    """The same value with passwords, tokens and the like replaced by `***`, however deep they are."""
    match value:
        case str() if _has_no_secret(value):
            return value
        case str() if len(value) > LONGEST_MASKED:
            return f"{mask(value[:LONGEST_MASKED])}…"
        case str():
            return _SECRET_TEXT.sub(lambda found: f"{found[found.lastgroup or 0]}{MASK}", value)
        case dict():
            return {key: MASK if _names_secret(key) and item else mask(item) for key, item in value.items()}
        case list() | tuple():
            return [mask(item) for item in value]
        case BaseException():
            return mask(str(value))
        case _:
            return value


def _has_no_secret(text: str) -> bool:
    """True for nearly every id and short sentence, at a tenth of the time that looking for secrets takes."""
    if not text.isascii():  # other letters count as one of ours in capitals
        return False
    lowered = text.lower()
    return not any(sign in lowered for sign in _SIGNS_OF_SECRETS)


class _Pipe(logging.StreamHandler[TextIO]):
    """A type of its own, so that a second `configure` replaces this handler and no other."""

    format_name: LogFormat = "console"


def _adopt(*names: str) -> None:
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.disabled = False
        logger.setLevel(logging.NOTSET)  # a server that ran before may have left its own


def _formatter(format: LogFormat, stream: TextIO) -> logging.Formatter:
    render: list[Processor] = (
        [structlog.processors.TimeStamper(fmt="iso"), _mask_event, _render_json]
        if format == "json"
        else [_mask_event, _Console(colors=_wants_colors(stream))]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_COMMON,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            *render,
        ],
    )


def _wants_colors(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ


def _names_secret(key: object) -> bool:
    if not isinstance(key, str):
        return False
    return _is_secret(key) if len(key) <= LONGEST_REMEMBERED else _is_secret.__wrapped__(key)


@lru_cache(maxsize=1024)
def _is_secret(name: str) -> bool:
    return _SECRET_KEY.search(name) is not None


def _mask_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    masked: EventDict = mask(event)
    return masked


def _render_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    if isinstance(fields := event.get(FIELDS), dict):
        event = {**fields, **{key: value for key, value in event.items() if key != FIELDS}}
    try:
        return orjson.dumps(event, default=_text, option=_JSON_OPTIONS).decode()
    except TypeError:  # an integer beyond 64 bits, a lone surrogate: rare, and still worth a line
        return json.dumps(event, default=_text)


class _Console:
    """`[INFO] message key=value`, with a traceback below."""

    def __init__(self, *, colors: bool) -> None:
        self.colors = colors

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> str:
        level = event.pop("level")
        event.pop("logger", None)
        return f"{self._tag(level)} {_render_text(_logger, _method, event)}"

    def _tag(self, level: str) -> str:
        tag = f"[{'WARN' if level == 'warning' else level.upper()}]"
        return f"{_COLORS.get(level, '')}{tag}{_RESET}" if self.colors else tag


def _render_text(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """`message key=value`, with a traceback below."""
    message = _one_line(str(event.pop("event")))
    event.pop(FIELDS, None)
    trace = _set_in(event.pop("exception")) if "exception" in event else ""
    pairs = "".join(f" {key}={_quoted(value)}" for key, value in event.items())
    return f"{message}{pairs}{trace}"


def _one_line(text: str) -> str:
    """Control characters written out, so that nobody's data can forge a line or move the cursor."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def _set_in(trace: str) -> str:
    """A traceback below its line. What an error says is somebody's data too, and may have lines that look like ours."""
    return "".join(f"\n  {_one_line(line)}" for line in trace.split("\n"))


def _quoted(value: object) -> str:
    text = _text(value)
    return text if _PLAIN.fullmatch(text) and text.isprintable() else _one_line(repr(text))


def _text(value: object) -> str:
    return str(mask(str(value)))
