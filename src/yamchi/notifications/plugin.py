"""The feature of notifications: what an application gets as `app.notifications`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import structlog

from yamchi.clock import to_millis
from yamchi.errors import ConfigurationError
from yamchi.http.scopes import PageToken
from yamchi.notifications.campaigns.fanout import FanOut
from yamchi.notifications.campaigns.limits import CampaignLimits
from yamchi.notifications.campaigns.rehearsal import Rehearsal
from yamchi.notifications.campaigns.store import Campaigns
from yamchi.notifications.channels.base import Channel
from yamchi.notifications.channels.circuits import Circuits
from yamchi.notifications.channels.configured import channels_of
from yamchi.notifications.channels.email.channel import EmailChannel, Mailbox, MailboxChannel
from yamchi.notifications.channels.email.smtp import SmtpServer
from yamchi.notifications.channels.null import NullChannel, NullLedger
from yamchi.notifications.channels.recording import RecordedChannel, SentMessage
from yamchi.notifications.erasure import Erasure
from yamchi.notifications.inbox.channel import InboxChannel
from yamchi.notifications.inbox.feed import Feed
from yamchi.notifications.inbox.hub import Hub
from yamchi.notifications.inbox.live_channel import LiveChannel
from yamchi.notifications.inbox.store import Inbox
from yamchi.notifications.people.preferences import PreferenceStore
from yamchi.notifications.people.recipients import Recipients
from yamchi.notifications.people.suppressions import Suppressions
from yamchi.notifications.people.tokens import PREFIX, PersonTokens
from yamchi.notifications.people.unsubscribe import UnsubscribeLinks
from yamchi.notifications.policy.caps import Caps
from yamchi.notifications.policy.checks import SendChecks
from yamchi.notifications.policy.context import ContextLoader
from yamchi.notifications.policy.rule_store import RuleStore
from yamchi.notifications.policy.rules import EventRulesHandler
from yamchi.notifications.schemas.notification_job import (
    LONGEST_CHANNEL,
    AnyNotification,
    NotificationJob,
    know_channel,
)
from yamchi.notifications.sending import email_queue
from yamchi.notifications.sending.attachments import Attachments
from yamchi.notifications.sending.composer import Composer
from yamchi.notifications.sending.counters import Counters
from yamchi.notifications.sending.dead_letters import DLQPublisher
from yamchi.notifications.sending.deliveries import LONGEST_RUN, Deliveries
from yamchi.notifications.sending.digests import Digests
from yamchi.notifications.sending.email_queue import EmailQueue
from yamchi.notifications.sending.history import History
from yamchi.notifications.sending.http_input import HttpInput, id_in
from yamchi.notifications.sending.outcomes import Outcomes
from yamchi.notifications.sending.processor import JobProcessor
from yamchi.notifications.sending.service import JOB, NotificationService
from yamchi.notifications.sending.unknown import UnknownDeliveries
from yamchi.notifications.settings import NotificationSettings
from yamchi.notifications.templates.files import FileTemplates
from yamchi.notifications.templates.lint import FileCheck
from yamchi.notifications.templates.versions import VersionedTemplates
from yamchi.plugins import Application, BoardPage, Check, Plugin, ask
from yamchi.queues.handlers import Handler
from yamchi.queues.job import Job
from yamchi.queues.records import JobRecord
from yamchi.settings import Settings
from yamchi.storage.keys import TableKeys

if TYPE_CHECKING:
    from prometheus_client import Metric

log = structlog.get_logger("yamchi.notifications")

QUEUE = "notifications"
MAX_LIST_BYTES = 1024 * 1024 * 1024
"""Largest list of people for a campaign, in bytes; it is read piece by piece."""

HERE = Path(__file__).parent


class Notifications(Plugin):
    """Sends messages: from an event to a message that arrives once."""

    name = "notifications"
    summary = "From an event to a message that arrives once: e-mail, push, Telegram, SMS, inbox; campaigns."
    settings_class = NotificationSettings
    migrations = HERE / "migrations"
    demo = "yamchi.notifications.demo:play"
    extras: ClassVar = {"push": "cryptography", "telegram": "httpx2", "sms": "apprise"}
    routes = "yamchi.notifications.routes:ROUTES"
    commands: ClassVar = {
        "send": "yamchi.notifications.commands.send:run",
        "template": "yamchi.notifications.commands.template:group",
        "campaign": "yamchi.notifications.commands.campaign:group",
        "delivery": "yamchi.notifications.commands.delivery:group",
    }
    makes: ClassVar = {"vapid": "yamchi.notifications.commands.vapid:run"}
    version_table = "alembic_version"  # as it was when there was no other feature

    def __init__(self, app: Application) -> None:
        super().__init__(app)
        self.http_input = HttpInput(app.database)
        self.declare()
        self.settings: NotificationSettings
        settings, database, clock = app.settings, app.database, app.clock
        self.queue = queue = app.queue(QUEUE)
        self._is_serving = False
        self.counters = Counters()
        self.channels: dict[str, Channel] = {}
        self.sent: list[SentMessage] = []
        """What has been sent since `record_sent`."""
        self.attachments = Attachments(self.settings.attachments_max_bytes)
        self.recipients = Recipients(database, clock)
        self.preferences = PreferenceStore(database, clock)
        self.suppressions = Suppressions(database, clock)
        self.deliveries = Deliveries(database, clock, self.counters.count_delivery)
        self.circuits = Circuits(database, clock)
        self.mailbox = Mailbox(database, clock, to_millis(self.settings.mailbox_keep))
        self.signer = app.signer
        self.persons = PersonTokens(self.signer, TableKeys(database, clock), clock)
        self.feed = Feed(database, clock)
        self.inbox = Inbox(database, self.feed, clock)
        self.hub = Hub(self.feed, self.inbox, self.persons, clock)
        self.template_files = FileCheck(settings.home / "templates")
        self.templates = VersionedTemplates(database, FileTemplates([settings.home / "templates"]), clock)
        self.rules = RuleStore(
            database, (settings.home / "rules.yaml", HERE / "defaults" / "rules.yaml"), clock
        )
        self.campaign_limits = CampaignLimits(database, queue, clock)
        self.service = NotificationService(
            database,
            queue,
            EventRulesHandler(self.rules, self.channels),
            self.recipients,
            self.deliveries,
            clock,
        )
        self.public_url = _public_url(settings, self.settings)
        self.unsubscribe_links = UnsubscribeLinks(self.signer, self.preferences, self.public_url)
        caps, self.digests = Caps(database, clock), Digests(database, self.deliveries, clock)
        self.deliveries.when_not_sent.append(caps.release)
        self.processor = self._make_processor(caps)
        counts = self.deliveries.campaign_counts
        rehearsal = Rehearsal(
            self.templates, self.recipients, has_links=self.unsubscribe_links.has_links, clock=clock
        )
        self.campaigns = Campaigns(
            database, clock, self.channels, self.templates, counts, self.campaign_limits, rehearsal
        )
        self.fan_out = FanOut(database, queue, counts, clock)
        self.dead_letters = DLQPublisher(queue)
        self.emails = EmailQueue(self.processor, lambda: self.channels["email"], clock)
        self.unknown_deliveries = UnknownDeliveries(self.deliveries, self.digests, self.service, queue)
        self.history = History(database, queue, self.channels, self.circuits, clock)
        self.erasure = Erasure(database, self.service, queue, self.persons, self.feed.announce_erasure)
        self.register(self._email())
        self.register(NullChannel(clock))
        self.register(InboxChannel(self.inbox))
        self.register(LiveChannel(self.feed, clock))
        for channel in channels_of(self.settings, database, self.circuits, clock):
            self.register(channel)

    def _make_processor(self, caps: Caps) -> JobProcessor:
        database, clock = self.app.database, self.app.clock
        loader = ContextLoader(
            self.channels,
            self.templates,
            self.recipients,
            self.app.settings.default_timezone,
            MailboxChannel(self.mailbox, self.settings.smtp_from, clock),
        )
        outcomes = Outcomes(
            self.deliveries,
            self.digests,
            self.suppressions,
            self.circuits,
            self.service.send,
            clock,
            self.counters.count_answer,
        )
        return JobProcessor(
            loader,
            SendChecks(self.suppressions, caps, database, clock),
            self.campaign_limits,
            self.digests,
            Composer(self.unsubscribe_links, self.attachments, clock),
            self.circuits,
            self.deliveries,
            outcomes,
            clock,
        )

    def register(self, channel: Channel) -> None:
        """Add a channel, or replace the one of the same name."""
        if not isinstance(channel, Channel):
            raise ConfigurationError(
                f"{type(channel).__name__} is not a channel: derive it from yamchi.notifications.channels.Channel."
            )
        if not 1 <= len(channel.name) <= LONGEST_CHANNEL:
            raise ConfigurationError(
                f"A channel's name has 1 to {LONGEST_CHANNEL} characters, not {len(channel.name)}: {channel.name!r}."
            )
        know_channel(channel.name)
        self.channels[channel.name] = channel

    def record_sent(self) -> list[SentMessage]:
        """For tests: the list of what is sent from now on. No provider is asked; Telegram and SMS are there without their settings."""
        channels = [
            RecordedChannel(self.sent, self.app.clock, one.name, one.address, one)
            for one in self.channels.values()
        ]
        telegram = RecordedChannel(self.sent, self.app.clock, "telegram", lambda person: person.telegram_id)
        sms = RecordedChannel(self.sent, self.app.clock, "sms", lambda person: person.phone)
        for channel in (telegram, sms, *channels):
            self.register(channel)
        return self.sent

    def declare(self) -> None:
        definition = self.app.define(
            QUEUE,
            concurrency=10,
            attempts=3,
            backoff={"type": "exponential", "delay": 1},
            topic="notifications.outbox",
        )
        definition.take_in, definition.id_in = self.http_input.data, id_in
        definition.is_own = False
        definition.withdraw, definition.restore = self._withdraw, self._restore
        emails = self.app.define(
            email_queue.QUEUE, concurrency=10, attempts=3, backoff={"type": "exponential", "delay": 1}
        )
        emails.take_in, emails.is_own = self.http_input.email, False
        emails.withdraw, emails.restore = self._withdraw, self._restore

    async def _withdraw(self, records: Sequence[JobRecord]) -> None:
        """Somebody cancels or removes these jobs in the queue: end their deliveries."""
        await self.deliveries.withdraw(self._notifications_of(records))

    async def _note_expiry(self, job: Job[object]) -> None:
        """This job expired in the queue: end its delivery."""
        await self.deliveries.withdraw(self._notifications_of([job.record]), "EXPIRED")

    async def _restore(self, records: Sequence[JobRecord]) -> None:
        """Somebody puts these cancelled jobs back in the queue: restore their deliveries."""
        await self.deliveries.restore([one.delivery_id for one in self._notifications_of(records)])

    def _notifications_of(self, records: Sequence[JobRecord]) -> list[NotificationJob]:
        reads = {QUEUE: self.processor.notification_of, email_queue.QUEUE: self.emails.notification_of}
        found = (reads[one.queue](Job(self.app.queue(one.queue), one)) for one in records)
        return [notification for notification in found if notification]

    def serve(self) -> None:
        """Let this application's workers send messages, and finish what a crash interrupted."""
        if self._is_serving:
            return
        self._is_serving = True

        async def send(job: Job[AnyNotification]) -> dict[str, object]:
            return (await self.processor.handle_job(job)).as_json()

        definition = self.queue.definition
        definition.handlers[JOB] = Handler(JOB, send)
        definition.timeout = min(definition.timeout or LONGEST_RUN, LONGEST_RUN)
        self.queue.listeners.on("failed", self.processor.note_failure)  # this process's own failures
        self.queue.listeners.on("expired", self._note_expiry)
        self._serve_emails()
        self.app.service("event sweeper", self.service.outbox.watch)
        self.app.service("inbox feed", self.feed.watch)
        self.app.service("campaign fan-out", self.fan_out.watch)
        self.app.service("digests", self.digests.watch)
        self.app.service("mailbox", self.mailbox.watch)
        self.app.service("null ledger", NullLedger(self.app.database, self.app.clock).watch)

    def _serve_emails(self) -> None:
        """Handle `email_queue`, unless the application has a handler of its own for it."""
        queue = self.app.queue(email_queue.QUEUE)
        definition = queue.definition
        if definition.handlers:
            return
        definition.handlers[email_queue.JOB] = Handler(email_queue.JOB, self.emails.handle)
        definition.timeout = min(definition.timeout or LONGEST_RUN, LONGEST_RUN)
        queue.listeners.on("failed", self.emails.note_failure)
        queue.listeners.on("expired", self._note_expiry)

    def static(self) -> dict[str, Path]:
        files = HERE / "static"
        return {"/inbox": files / "inbox", "/push": files / "push", "/notifications": files / "board"}

    def pages(self) -> Iterable[BoardPage]:
        yield BoardPage("Notifications", "/activity", "/notifications/activity.js")
        yield BoardPage("Campaigns", "/campaigns", "/notifications/campaigns.js")
        yield BoardPage("Mailbox", "/mailbox")

    def body_limits(self) -> dict[str, int]:
        return {"/api/v1/campaigns/[^/]+/audience": MAX_LIST_BYTES}

    def tips(self, url: str, command: str, options: str) -> Iterable[tuple[str, str]]:
        yield "Mail", f"{command} send email you@example.com --template welcome_email{options}"
        yield "Read it", f"{url}/mailbox"

    def tokens(self) -> Iterable[PageToken]:
        yield PageToken(PREFIX, self._whose)

    async def _whose(self, token: str) -> str:
        return (await self.persons.check(token)).user_id

    def metrics(self) -> "Iterable[Metric]":
        return self.counters.metrics(self.app.metrics.pending(QUEUE))

    async def checks(self) -> list[Check]:
        """Whether rules and template files can be used, and whether providers are up."""
        now = self.app.clock.now()
        problem = await self.rules.problem()
        found = [Check("rules", False, problem)] if problem else []
        found += [Check("template file", False, one) for one in await self.template_files.problems()]
        return found + [
            Check(f"channel {one.name}", not one.is_open, one.describe(now))
            for one in await self.circuits.all()
        ]

    async def probes(self) -> list[Check]:
        """Links, and whether the providers that can be asked know this account."""
        channels = self.channels.values()
        asked = [check for one in channels for check in await ask(f"provider {one.name}", one.ping)]
        return [self._check_links(), *asked]

    def _check_links(self) -> Check:
        """Whether letters can have a link to unsubscribe."""
        if url := self.app.settings.public_url:
            return Check("links", True, f"in messages begin with {url}")
        if not self.has_smtp:
            return Check(
                "links", True, "in the mailbox lead to this machine; set PUBLIC_URL before you send mail"
            )
        return Check(
            "links",
            None,
            "letters have no link to unsubscribe, which mail providers ask for: set PUBLIC_URL to where people reach this server",
        )

    async def erase(self, user_id: str) -> dict[str, int]:
        return await self.erasure.erase(user_id)

    async def close(self) -> None:
        await self.hub.close()
        for channel in self.channels.values():
            try:
                await channel.close()
            except Exception:
                log.exception(f"closing the channel {channel.name} failed")

    @property
    def has_smtp(self) -> bool:
        return self.settings.smtp_host is not None

    def _email(self) -> Channel:
        settings, clock = self.settings, self.app.clock
        if settings.smtp_host is None:
            return MailboxChannel(self.mailbox, settings.smtp_from, clock)
        password = settings.smtp_password.get_secret_value() if settings.smtp_password else None
        server = SmtpServer(
            settings.smtp_host, settings.smtp_port, settings.smtp_user, password, settings.smtp_security
        )
        return EmailChannel(server, settings.smtp_from, clock)


def _public_url(settings: Settings, own: NotificationSettings) -> str | None:
    """The base of links in messages. E-mails in the mailbox are read on this machine, so localhost is right for them."""
    is_mailbox_here = own.smtp_host is None and settings.port
    return settings.public_url or (f"http://localhost:{settings.port}" if is_mailbox_here else None)
