"""Letters as bytes: what went in comes out of a parser again, and nothing that was typed can change the structure."""

from email import message_from_bytes, policy
from email.message import EmailMessage

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yamchi.errors import Unrecoverable
from yamchi.notifications.channels.base import Attachment, Message
from yamchi.notifications.channels.email.mime import compose
from yamchi.notifications.templates.model import Rendered

NOW = 1_763_123_710_000
HEADERS = {
    "Message-ID",
    "Date",
    "From",
    "To",
    "Subject",
    "MIME-Version",
    "Content-Type",
    "Content-Transfer-Encoding",
}
typed = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=300)


def letter(rendered: Rendered, to: str = "a@example.com", **fields: object) -> EmailMessage:
    made = compose(Message("job-1", to, rendered, **fields), "Ямчи <noreply@example.com>", NOW)  # type: ignore[arg-type]
    assert all(len(line) <= 998 for line in made.content.split(b"\r\n"))
    assert b"\n" not in made.content.replace(b"\r\n", b"")
    return message_from_bytes(made.content, policy=policy.default)


@given(subject=typed, text=typed, html=typed)
def test_what_goes_in_comes_out(subject: str, text: str, html: str) -> None:
    parsed = letter(Rendered(text, html=f"<p>{html}</p>", subject=subject))
    assert parsed["Subject"].strip() == subject.strip()
    assert parsed["From"].addresses[0].display_name == "Ямчи"
    assert parsed["Message-ID"] == "<job-1@example.com>"
    assert set(parsed.keys()) <= HEADERS
    plain, rich = parsed.get_body(("plain",)), parsed.get_body(("html",))
    assert plain is not None
    assert rich is not None
    assert plain.get_content().rstrip() == text.rstrip()
    assert rich.get_content().rstrip() == f"<p>{html}</p>"


def test_a_dot_and_a_boundary_in_the_text_are_text() -> None:
    text = ".\r\n--boundary\r\nSubject: other\r\n\r\n.\r\nend"
    parsed = letter(Rendered(text, html="<p>x</p>", subject="Hi"))
    plain = parsed.get_body(("plain",))
    assert plain is not None
    assert plain.get_content().splitlines() == text.splitlines()


def test_attachments_keep_their_names_and_bytes() -> None:
    report = Attachment("отчёт за ноябрь.pdf", bytes(range(256)) * 10, "application/pdf")
    parsed = letter(Rendered("see below", subject="Report"), attachments=[report])
    (part,) = parsed.iter_attachments()
    assert (part.get_filename(), part.get_content_type()) == (report.filename, "application/pdf")
    assert part.get_content() == report.content


@pytest.mark.parametrize("subject", ["Hi\r\nBcc: v@example.com", "Hi\nX: y", "Hi\x00", "a\rb"])
def test_a_subject_can_add_no_header(subject: str) -> None:
    with pytest.raises(Unrecoverable, match="line break or control character"):
        letter(Rendered("text", subject=subject))


@pytest.mark.parametrize(
    "address",
    ["", "nobody", "a@b@c", "a@example.com\r\nBcc: v@example.com", "a b@example.com", "<a@example.com>"],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(Unrecoverable, match="is not an e-mail address"):
        letter(Rendered("text", subject="Hi"), to=address)


def test_an_international_domain_is_written_as_servers_know_it() -> None:
    assert letter(Rendered("text", subject="Hi"), to="почта@пример.рф")["To"].endswith(
        "xn--e1afmkfd.xn--p1ai"
    )


def test_unsubscribing_takes_one_click() -> None:
    parsed = letter(Rendered("text", subject="Hi"), unsubscribe_url="https://example.com/u/1")
    assert parsed["List-Unsubscribe"] == "<https://example.com/u/1>"
    assert parsed["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
