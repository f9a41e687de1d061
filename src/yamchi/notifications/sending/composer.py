"""From a send context to the message that the channel gets: the rendered template, the unsubscribe link, the attachments."""

from dataclasses import replace

from yamchi.clock import Clock, as_datetime
from yamchi.notifications.channels.base import Message
from yamchi.notifications.people.recipients import as_template_data
from yamchi.notifications.people.unsubscribe import UnsubscribeLinks
from yamchi.notifications.policy.context import SendContext
from yamchi.notifications.sending.attachments import Attachments, references_of
from yamchi.notifications.templates.model import Rendered
from yamchi.notifications.templates.offloop import render_message


class Composer:
    """Makes messages. Nothing is sent or stored here."""

    def __init__(self, unsubscribe_links: UnsubscribeLinks, attachments: Attachments, clock: Clock) -> None:
        self._unsubscribe_links = unsubscribe_links
        self._attachments = attachments
        self._clock = clock

    async def compose(self, context: SendContext) -> Message:
        """The message, with the content of the request or rendered from its template."""
        job, request = context.job, context.request
        unsubscribe_url = await self._unsubscribe_url(context)
        rendered = request.rendered or await self._render(context, unsubscribe_url)
        return Message(
            job.delivery_id,
            context.address or "",
            rendered if request.subject is None else replace(rendered, subject=request.subject),
            is_urgent=context.is_urgent,
            expires_at=context.expires_at,
            unsubscribe_url=unsubscribe_url,
            attachments=await self._attachments.load(references_of(job.model_extra)),
            user_id=context.recipient.user_id,
            template_code=job.template_code,
            category=context.category,
        )

    async def _unsubscribe_url(self, context: SendContext) -> str | None:
        """None for transactional messages, which nobody can unsubscribe from, and for messages to a bare address."""
        user_id = context.recipient.user_id
        if user_id is None or context.is_transactional:
            return None
        return await self._unsubscribe_links.url_of(user_id, context.channel.name, context.category)

    async def _render(self, context: SendContext, unsubscribe_url: str | None) -> Rendered:
        assert context.template is not None
        data = {**context.job.data, "user": as_template_data(context.recipient)}
        now = as_datetime(self._clock.now())
        return await render_message(context.template, data, now=now, unsubscribe_url=unsubscribe_url)
