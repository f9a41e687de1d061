"""The pool of connections to a mail server."""

import asyncio

import pytest

from tests.services.mail import MailServer
from yamchi.errors import Unrecoverable
from yamchi.notifications.channels.email.mime import Letter
from yamchi.notifications.channels.email.smtp import SmtpPool, SmtpServer


def letter(to: str) -> Letter:
    return Letter("<1@example.com>", "shop@example.com", to, "Hello", b"Subject: Hello\r\n\r\nHello\r\n")


async def test_an_address_that_the_server_can_not_write_to_costs_no_connection(
    mail_server: MailServer,
) -> None:
    """A connection that nobody gives back stays open until the server has no room for others."""
    mail_server.speaks_utf8 = False
    before = mail_server.connections
    pool = SmtpPool(SmtpServer(mail_server.host, mail_server.port, security="none"))
    for _ in range(3):
        with pytest.raises(Unrecoverable, match="SMTPUTF8"):
            await pool.send(letter("нуржан@example.com"))
    await pool.send(letter("nurzhan@example.com"))
    assert mail_server.connections - before == 1
    await pool.close()


async def test_a_server_that_thinks_over_a_letter_gets_it_once(mail_server: MailServer) -> None:
    """It answers commands at once, but looks for viruses before it takes a letter; one given up too early comes twice."""
    pool = SmtpPool(SmtpServer(mail_server.host, mail_server.port, security="none"))
    await pool.send(letter("first@example.com"))
    (connection,) = pool._idle
    connection._timeout, mail_server.seconds = 0.5, 1.0
    assert await pool.send(letter("nurzhan@example.com")) == "Message accepted"
    assert mail_server.by_recipient()["nurzhan@example.com"] == 1
    await pool.close()


async def test_a_server_that_waits_for_a_letter_it_has_refused_gets_an_empty_one() -> None:
    """Of commands that were sent together it refuses one and goes on with the next, as RFC 2920 allows."""
    taken: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\r\n")
        while line := await reader.readline():
            match line.split()[0].upper():
                case b"EHLO":
                    writer.write(b"250-here\r\n250 PIPELINING\r\n")
                case b"RCPT" if b"nobody" in line:
                    writer.write(b"550 5.1.1 no such user\r\n")
                case b"DATA":
                    writer.write(b"354 go on\r\n")
                    taken.append(await reader.readuntil(b".\r\n"))
                    writer.write(b"250 taken\r\n")
                case _:
                    writer.write(b"250 ok\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        pool = SmtpPool(SmtpServer("127.0.0.1", server.sockets[0].getsockname()[1], security="none"))
        async with asyncio.timeout(20):
            with pytest.raises(Unrecoverable, match="no such user"):
                await pool.send(letter("nobody@example.com"))
            assert await pool.send(letter("nurzhan@example.com")) == "taken"
        await pool.close()
    assert taken == [b".\r\n", b"Subject: Hello\r\n\r\nHello\r\n.\r\n"]
