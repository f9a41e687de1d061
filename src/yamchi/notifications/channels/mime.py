"""From a rendered message to the letter on the wire. Nothing a user typed can add a header or break the structure."""

import re
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, parseaddr

from email_validator import EmailNotValidError, validate_email

from yamchi.clock import Millis, as_datetime
from yamchi.errors import Unrecoverable
from yamchi.notifications.channels.base import Message

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_address(address: str) -> str:
    """The address, with its domain in the form that mail servers know."""
    try:
        return validate_email(address, check_deliverability=False).normalized
    except EmailNotValidError as error:
        raise Unrecoverable(f"{address!r} is not an e-mail address: {error}") from error


def check_header(what: str, value: str) -> str:
    if _CONTROL.search(value):
        raise Unrecoverable(f"The {what} has a line break or control character: {value[:60]!r}")
    return value


def message_id(job_id: str, sender: str) -> str:
    """Derived from the job, so that a letter sent twice is recognized as the same one."""
    domain = sender.rpartition("@")[2] or "localhost"
    return f"<{job_id}@{domain}>"


def compose(message: Message, sender: str, now: Millis) -> EmailMessage:
    """A letter with a text part, an HTML part and the headers that mail providers ask for."""
    name, address = parseaddr(sender)
    letter = EmailMessage(policy=SMTP)
    letter["Message-ID"] = message_id(message.job_id, address)
    letter["Date"] = format_datetime(as_datetime(now))
    letter["From"] = Address(check_header("sender", name), addr_spec=address)
    letter["To"] = check_address(message.to)
    letter["Subject"] = check_header("subject", message.rendered.subject or "")
    if message.unsubscribe_url:
        letter["List-Unsubscribe"] = f"<{check_header('unsubscribe link', message.unsubscribe_url)}>"
        letter["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    letter.set_content(message.rendered.text or "")
    if message.rendered.html:
        letter.add_alternative(message.rendered.html, subtype="html")
    for attachment in message.attachments:
        main, _, sub = attachment.type.partition("/")
        name = check_header("attachment's name", attachment.filename)
        letter.add_attachment(attachment.content, maintype=main, subtype=sub or "octet-stream", filename=name)
    return letter
