"""Where Redis is, read from a URL.

redis://user:password@host:6379/0?prefix={bull}
rediss://host:6380/0?ssl_ca_certs=/etc/ca.pem          TLS, its settings by the names that redis-py gives them
redis+sentinel://host1:26379,host2:26379/mymaster/0     asks the sentinels who the master is (rediss+sentinel too)
"""

import ssl
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from yamchi.errors import ConfigurationError

PORT, SENTINEL_PORT = 6379, 26379
EXAMPLE = "redis://:password@host:6379/0"
TLS_OPTIONS = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)


@dataclass(frozen=True, slots=True)
class Address:
    """Everything needed to reach Redis. `hosts` are sentinels where `service` is set."""

    hosts: tuple[tuple[str, int], ...]
    service: str | None = None
    database: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_password: str | None = None
    prefix: str = "bull"
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        """For people, without the password."""
        where = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{where} ({self.service})" if self.service else where


def read_address(url: str) -> Address:
    """The address a URL names; a sentence that says what is wrong with it otherwise."""
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    is_sentinel = parts.scheme.endswith("+sentinel")
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    path = [unquote(part) for part in parts.path.split("/") if part]
    if is_sentinel and not path:
        raise ConfigurationError(
            f"{parts.scheme}://… names no service: write it as {parts.scheme}://host1:26379,host2:26379/mymaster"
        )
    service = path.pop(0) if is_sentinel else None
    return Address(
        hosts=tuple(_host(one, is_sentinel) for one in (hosts or "localhost").split(",")),
        service=service,
        database=_number("database", options.get("db") or (path[0] if path else "0")),
        username=unquote(username) or None,
        password=unquote(password) or None,
        sentinel_password=options.get("sentinel_password"),
        prefix=options.get("prefix", "bull"),
        tls=_tls(options) if parts.scheme.startswith("rediss") else None,
    )


def _host(text: str, is_sentinel: bool) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(SENTINEL_PORT if is_sentinel else PORT)
    return host.strip("[]") or "localhost", _number("port", port)


def _number(what: str, text: str) -> int:
    if not text.isdigit():
        raise ConfigurationError(f"The {what} of the Redis URL is not a number: write {EXAMPLE}")
    return int(text)


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    if unknown := [name for name in options if name.startswith("ssl_") and name not in TLS_OPTIONS]:
        raise ConfigurationError(
            f"A rediss:// URL has no parameter {', '.join(unknown)}: of TLS it has {', '.join(TLS_OPTIONS)}."
        )
    try:
        context = ssl.create_default_context(
            cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path")
        )
        if certificate := options.get("ssl_certfile"):
            password = options.get("ssl_password", "")  # without one, OpenSSL would ask at the terminal
            context.load_cert_chain(certificate, options.get("ssl_keyfile"), password)
    except OSError as error:
        raise ConfigurationError(f"The certificates named in the Redis URL can't be read: {error}") from error
    if options.get("ssl_check_hostname", "").lower() in ("false", "0", "no"):
        context.check_hostname = False
    match options.get("ssl_cert_reqs", "required").lower().removeprefix("cert_"):
        case "none":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        case "required" | "optional":  # a server always has one
            pass
        case _:
            raise ConfigurationError("ssl_cert_reqs of the Redis URL is none, optional or required.")
    return context
