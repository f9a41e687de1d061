"""The room of notifications, furnished: what an application gets as `app.notifications`."""

from functools import cached_property
from pathlib import Path

from yamchi.clock import Clock
from yamchi.notifications.campaigns.fanout import FanOut
from yamchi.notifications.campaigns.gate import CampaignGate
from yamchi.notifications.campaigns.store import Campaigns
from yamchi.notifications.caps import Caps
from yamchi.notifications.channels.base import Channel
from yamchi.notifications.channels.email import EmailChannel, Mailbox, MailboxChannel
from yamchi.notifications.channels.inbox import InboxChannel
from yamchi.notifications.channels.live import LiveChannel
from yamchi.notifications.channels.null import NullChannel
from yamchi.notifications.channels.outfitting import channels_of
from yamchi.notifications.channels.smtp import SmtpServer
from yamchi.notifications.circuits import Circuits
from yamchi.notifications.deliveries import Deliveries
from yamchi.notifications.digests import Digests
from yamchi.notifications.dlq import DLQPublisher
from yamchi.notifications.doubts import Doubts
from yamchi.notifications.erasure import Erasure
from yamchi.notifications.errand import Errands
from yamchi.notifications.escalation import InboxReceipts
from yamchi.notifications.gates import Gate
from yamchi.notifications.history import History
from yamchi.notifications.inbox.feed import Feed
from yamchi.notifications.inbox.hub import Hub
from yamchi.notifications.inbox.store import Inbox
from yamchi.notifications.inbox.tokens import PersonTokens
from yamchi.notifications.preferences import PreferenceBook
from yamchi.notifications.processor import JobProcessor
from yamchi.notifications.recipients import Recipients
from yamchi.notifications.rulebook import RuleBook
from yamchi.notifications.rules import EventRulesHandler
from yamchi.notifications.schemas.notification_job import AnyNotification, know_channel
from yamchi.notifications.service import JOB, NotificationService
from yamchi.notifications.signing import Signer
from yamchi.notifications.suppressions import Suppressions
from yamchi.notifications.templates.files import FileTemplates
from yamchi.notifications.unsubscribe import Unsubscribing
from yamchi.notifications.versions import VersionedTemplates
from yamchi.observe.metrics import Metrics
from yamchi.queues.handlers import Handler
from yamchi.queues.queue import Queue
from yamchi.queues.services import Services
from yamchi.queues.ticket import Job
from yamchi.settings import Settings
from yamchi.storage.database import Database

SHIPPED = Path(__file__).parents[1] / "defaults"


class Notifications:
    """Everything that leads from an event to a message that arrives once."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        queue: Queue,
        clock: Clock,
        services: Services,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._database = database
        self._services = services
        self.queue = queue
        self.channels: dict[str, Channel] = {}
        self.recipients = Recipients(database, clock)
        self.preferences = PreferenceBook(database, clock)
        self.suppressions = Suppressions(database, clock)
        self.deliveries = Deliveries(database, clock, metrics.count_delivery)
        self.circuits = Circuits(database, clock)
        self.mailbox = Mailbox(database)
        self.signer = Signer(database, settings.secret_key)
        self.persons = PersonTokens(self.signer, clock)
        self.feed = Feed(database, clock)
        self.inbox = Inbox(database, self.feed, clock)
        self.hub = Hub(self.feed, self.inbox, clock)
        self.templates = VersionedTemplates(database, FileTemplates([settings.home / "templates"]), clock)
        self.rules = RuleBook(database, (settings.home / "rules.yaml", SHIPPED / "rules.yaml"), clock)
        self.gate = CampaignGate(database, queue, clock)
        self.service = NotificationService(
            database,
            queue,
            EventRulesHandler(self.rules, self.channels),
            self.recipients,
            self.deliveries,
            clock,
        )
        self.unsubscribing = Unsubscribing(self.signer, self.preferences, _public_url(settings))
        self.processor = JobProcessor(
            Errands(self.channels, self.templates, self.recipients, settings.default_timezone),
            Gate(self.suppressions, Caps(database, clock), InboxReceipts(database), clock),
            self.unsubscribing,
            Digests(database, self.deliveries, clock),
            self.deliveries,
            self.suppressions,
            self.circuits,
            self.gate,
            self.service.send,
            clock,
            metrics.count_answer,
        )
        counts = self.deliveries.campaign_counts
        self.campaigns = Campaigns(database, clock, self.channels, self.templates, counts, self.gate)
        self.fan_out = FanOut(database, queue, counts, clock)
        self.dead_letters = DLQPublisher(queue)
        self.doubts = Doubts(self.deliveries, self.service, queue)
        self.history = History(database)
        self.erasure = Erasure(database, self.service, queue)
        self.register(self._email(clock))
        self.register(NullChannel(clock))
        self.register(InboxChannel(self.inbox))
        self.register(LiveChannel(self.feed, clock))
        for channel in channels_of(settings, database, self.circuits, clock):
            self.register(channel)

    def register(self, channel: Channel) -> None:
        """Add a channel, or put another in the place of one."""
        know_channel(channel.name)
        self.channels[channel.name] = channel

    def serve(self) -> None:
        """Let this application's workers send: they handle the queue, and finish what a crash interrupted."""
        definition = self.queue.definition

        async def send(job: Job[AnyNotification]) -> dict[str, object]:
            return await self.processor.handle_job(job)

        definition.handlers[JOB] = Handler(JOB, send)
        self.queue.listeners.on("failed", self.processor.note_failure)  # this process's own failures
        self._services.add("event sweeper", self.service.watch)
        self._services.add("inbox feed", self.feed.watch)
        self._services.add("campaign fan-out", self.fan_out.watch)

    async def close(self) -> None:
        await self.hub.close()
        for channel in self.channels.values():
            await channel.close()

    @cached_property
    def has_smtp(self) -> bool:
        return self._settings.smtp_host is not None

    def _email(self, clock: Clock) -> Channel:
        settings = self._settings
        if settings.smtp_host is None:
            return MailboxChannel(self._database, settings.smtp_from, clock)
        password = settings.smtp_password.get_secret_value() if settings.smtp_password else None
        server = SmtpServer(
            settings.smtp_host, settings.smtp_port, settings.smtp_user, password, settings.smtp_security
        )
        return EmailChannel(server, settings.smtp_from, clock)


def _public_url(settings: Settings) -> str | None:
    """Where links in messages lead; letters that stay at home are read on this machine."""
    is_at_home = settings.smtp_host is None and settings.port
    return settings.public_url or (f"http://localhost:{settings.port}" if is_at_home else None)
