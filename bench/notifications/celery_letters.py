"""Celery sending letters the way tutorials do it: a task per letter, and in it smtplib connects, sends and quits."""

import os
import smtplib
import sys
from email.message import EmailMessage

from celery import Celery, group
from jinja2 import Template

from bench.notifications.letters import (
    HTML,
    SENDER,
    SMTP_HOST,
    SMTP_PORT,
    SUBJECT,
    address_of,
    name_of,
)

BATCH = 500
TEXT = "Hello, {{ first_name }}!\n\nThank you for joining. Your account is ready.\n"

app = Celery("letters", broker=os.environ["BENCH_URL"])
app.conf.broker_connection_retry_on_startup = True
subject, html, text = Template(SUBJECT), Template(HTML, autoescape=True), Template(TEXT)


@app.task(name="send_welcome", ignore_result=True)
def send_welcome(address: str, first_name: str) -> None:
    letter = EmailMessage()
    letter["From"], letter["To"] = SENDER, address
    letter["Subject"] = subject.render(first_name=first_name)
    letter.set_content(text.render(first_name=first_name))
    letter.add_alternative(html.render(first_name=first_name), subtype="html")
    with smtplib.SMTP(SMTP_HOST, SMTP_PORT) as server:
        server.send_message(letter)


def add(letters: int) -> None:
    for start in range(0, letters, BATCH):
        numbers = range(start, min(start + BATCH, letters))
        group([send_welcome.s(address_of(n), name_of(n)) for n in numbers]).apply_async()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["add", letters]:
            add(int(letters))
        case ["work"]:
            program = os.path.join(os.path.dirname(sys.executable), "celery")
            os.execv(
                program, [program, "-A", "bench.notifications.celery_letters", "worker", "--loglevel=ERROR"]
            )
