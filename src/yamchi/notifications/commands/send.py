"""`yamchi send`: one message to one address, through the queue, as any other."""

from typing import Annotated
from uuid import uuid4

import typer
from pydantic import ValidationError

from yamchi.console.loading import AppOption, JsonOption, check_choice, read_json, with_plugin
from yamchi.console.output import answer
from yamchi.errors import InvalidJob
from yamchi.notifications.people.recipients import as_template_data
from yamchi.notifications.plugin import Notifications
from yamchi.notifications.schemas.notification_job import CHANNELS, DirectMessage, canonical_channel
from yamchi.notifications.sending.direct import addresses_of, at
from yamchi.notifications.templates.model import Template, find_template
from yamchi.notifications.templates.rehearsing import rehearse
from yamchi.queues.handlers import describe


def run(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help=f"One of {', '.join(CHANNELS)}.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="The address: an e-mail, a phone number, a chat.")],
    template: Annotated[str | None, typer.Option(help="The template's code.")] = None,
    subject: Annotated[
        str | None, typer.Option(help="The subject; a template has one of its own, which this replaces.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="What it says, instead of a template.")] = None,
    locale: Annotated[str, typer.Option(help="The language.")] = "ru",
    data: Annotated[str, typer.Option(help="The template's data, as JSON.")] = "{}",
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Queue a message to one address; a worker sends it.

    Example: [cyan]yamchi send email me@example.com --template welcome_email --locale kk[/]
    """
    check_choice("channel", channel, CHANNELS)
    if (template is None) == (text is None):
        raise InvalidJob("Say what to send: either --template CODE, or --text with --subject.")
    options = {"to": to, "template": template, "subject": subject, "text": text, "locale": locale}
    try:
        message = DirectMessage.model_validate(
            {"channel": channel, "options": {**options, "data": read_json(data)}}
        )
    except ValidationError as error:
        raise InvalidJob(f"{describe(error)}.") from error
    job_id = str(uuid4())

    async def send(notifications: Notifications) -> None:
        if template is not None:
            found = await find_template(notifications.templates, template, canonical_channel(channel), locale)
            await _rehearse(found, message)
        await notifications.service.send_direct(message, job_id)

    with_plugin(Notifications, app, send)
    said = f"queued as {job_id}; [cyan]yamchi jobs show notifications {job_id}[/] tells what became of it"
    answer({"job_id": job_id}, said, as_json=as_json)


async def _rehearse(template: Template, message: DirectMessage) -> None:
    """Refuse a message that can't be made of this data. What is known of a person, a worker adds as it sends."""
    for address in addresses_of(message):
        recipient = at(address)
        if recipient.user_id is None:
            await rehearse(template, {**message.options.data, "user": as_template_data(recipient)})
