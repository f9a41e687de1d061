"""The feature of leads: what an application gets as `app.leads`."""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from yamchi.clock import to_millis
from yamchi.errors import ConfigurationError
from yamchi.http.signing import Signer
from yamchi.leads import meetings
from yamchi.leads.bot import Bot
from yamchi.leads.chat import Chat
from yamchi.leads.contacts import Contact, read_form
from yamchi.leads.entities import KIND, LeadEntities
from yamchi.leads.listening import JOB, QUEUE, Listener
from yamchi.leads.meetings import Meetings
from yamchi.leads.model import Lead
from yamchi.leads.service import LeadService
from yamchi.leads.settings import LeadSettings
from yamchi.leads.sheets.pending import PendingChanges
from yamchi.leads.sheets.spreadsheet import Spreadsheet
from yamchi.leads.sheets.syncing import SheetSync
from yamchi.leads.slots import Slots
from yamchi.leads.speaking import BotServices
from yamchi.leads.store import LeadStore
from yamchi.leads.talk import Conversation
from yamchi.leads.zoom import Zoom
from yamchi.notifications.channels.telegram.bot_api import BotApi
from yamchi.notifications.plugin import Notifications
from yamchi.plugins import Application, BoardPage, Check, Plugin, ask
from yamchi.queues.handlers import Handler
from yamchi.scenarios.plugin import Scenarios
from yamchi.settingtypes import reveal

WEBHOOK = "/api/webhooks/telegram"
LESSONS: dict[str, Any] = {"concurrency": 3, "attempts": 10, "backoff": ["1m", "5m", "15m"]}
FORM_LIMIT = 256 * 1024
"""Bytes of a form; Tilda's have a few hundred."""


class Leads(Plugin):
    """People who left a contact, from the form to the lesson."""

    name = "leads"
    summary = "Leads from Tilda's forms: kept once, followed up by scenarios, listed, changed, exported."
    requires = ("notifications", "scenarios")
    settings_class = LeadSettings
    migrations = Path(__file__).parent / "migrations"
    demo = "yamchi.leads.demo:play"
    routes = "yamchi.leads.routes:ROUTES"
    commands: ClassVar = {"lead": "yamchi.leads.commands:group"}
    extras: ClassVar = {"sheets": "gspread"}

    def __init__(self, app: Application) -> None:
        super().__init__(app)
        self.settings: LeadSettings
        settings = self.settings
        self._zone = zone = settings.lesson_timezone or app.settings.default_timezone
        notifications, self._scenarios = app.plugin(Notifications), app.plugin(Scenarios)
        self._notifications = notifications
        is_in_sheets = settings.leads == "sheets"
        self.store = LeadStore(app.database, app.clock, zone, PendingChanges() if is_in_sheets else None)
        self.entities = LeadEntities(
            app.database,
            self.store,
            notifications.recipients,
            app.clock,
            zone=zone,
            region=settings.lead_phone_region,
            locale=settings.lead_locale,
            bot_url=_bot_url(settings.telegram_bot_name),
        )
        self.service = LeadService(
            app.database,
            self.store,
            notifications.service,
            self._scenarios,
            app.clock,
            Signer(
                app.database, None
            ),  # a key that stays, so that a form is known again after SECRET_KEY has changed
            region=settings.lead_phone_region,
            zone=zone,
        )
        self.sheet = self.entities.spreadsheet = self._open_sheet() if is_in_sheets else None
        self._scenarios.entities.register(KIND, self.entities)
        notifications.service.checks.append(self.entities.check)
        self.meetings = self._meet()
        self.slots = Slots(app.database, self.store, app.clock, settings, zone)
        self.chat: Chat | None = None
        self.bot: Bot | None = None
        self._talk: Conversation | None = None
        self.listener: Listener | None = None
        if settings.telegram_bot != "off":
            self.listener = self._listen()

    # ── For your code ─────────────────────────────────────────────────────────────────────────────────────────────

    async def submit(self, **fields: Any) -> Lead:
        """Take in a form: `await app.leads.submit(name="Марат", phone="8 701 000 00 00", tranid="1:2")`."""
        lead, _ = await self.service.submit(fields, source="api")
        return lead

    def read(self, form: Mapping[str, Any]) -> Contact:
        """What a form says of a person, without keeping it."""
        return read_form(form, self.settings.lead_phone_region)

    async def get(self, lead_id: str) -> Lead:
        return await self.store.get(lead_id)

    async def edit(self, lead_id: str, **fields: Any) -> Lead:
        """Change a lead; what scenarios wait for, such as a new date of the lesson, is told as an event."""
        return await self.service.edit(lead_id, fields)

    async def tell(self, event_type: str, lead_id: str, **data: Any) -> None:
        """Something happened to a lead: `await app.leads.tell("lesson.booked", lead.id, lesson_datetime="…")`."""
        await self.service.tell(event_type, lead_id, **data)

    # ── Google Sheets ─────────────────────────────────────────────────────────────────────────────────────────────

    def _open_sheet(self) -> SheetSync:
        settings = self.settings
        if settings.sheets_id is None or settings.sheets_credentials is None:
            raise ConfigurationError(
                "LEADS=sheets needs SHEETS_ID and SHEETS_CREDENTIALS, the key of a service account."
            )
        credentials = settings.sheets_credentials.get_secret_value()
        return SheetSync(
            self.app.database,
            self.store,
            self.service,
            Spreadsheet(settings.sheets_id, credentials, settings.sheets_url),
            self.app.clock,
            leads_title=settings.sheets_leads,
            log_title=settings.sheets_log,
            every=to_millis(settings.sheets_every),
        )

    # ── The bot ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _listen(self) -> Listener:
        """The bot that people write to is the one that writes to them."""
        app, settings, known = self.app, self.settings, self._notifications.settings
        if known.telegram_bot_token is None:
            raise ConfigurationError(
                f"TELEGRAM_BOT={settings.telegram_bot} needs TELEGRAM_BOT_TOKEN, from @BotFather."
            )
        if settings.telegram_bot == "webhook" and settings.telegram_webhook_secret is None:
            raise ConfigurationError(
                "TELEGRAM_BOT=webhook needs TELEGRAM_WEBHOOK_SECRET: a long random text."
            )
        self.declare()
        api = BotApi(known.telegram_api_url, known.telegram_bot_token.get_secret_value())
        self.chat = Chat(api, self._notifications.templates)
        services = BotServices(
            app.database,
            self.store,
            self.service,
            self.slots,
            app.keys,
            app.clock,
            self._zone,
            settings.lead_locale,
            settings.lead_phone_region,
            known.telegram_admin_group_id,
            known.telegram_admin_locale,
        )
        self._talk = self._converse()
        self.bot = Bot(services, self.chat, self._talk)
        return Listener(app.queue(QUEUE), self.bot, self.chat, app.clock, app.database)

    def _converse(self) -> Conversation | None:
        settings = self.settings
        if settings.ai_url is None:
            return None
        return Conversation(
            self.app.keys,
            url=settings.ai_url,
            key=reveal(settings.ai_key),
            model=settings.ai_model,
            prompt=settings.ai_prompt,
            hourly=settings.ai_hourly_limit,
        )

    def _meet(self) -> Meetings | None:
        """Meetings at Zoom, where there is an account."""
        settings = self.settings
        parts = (settings.zoom_account_id, settings.zoom_client_id, reveal(settings.zoom_client_secret))
        if not any(parts):
            return None
        account, client, secret = parts
        if account is None or client is None or secret is None:
            raise ConfigurationError(
                "Zoom needs ZOOM_ACCOUNT_ID, ZOOM_CLIENT_ID and ZOOM_CLIENT_SECRET, all three."
            )
        self._zoom = Zoom(
            self.app.keys,
            api_url=settings.zoom_url,
            oauth_url=settings.zoom_oauth_url,
            account=account,
            client=client,
            secret=secret,
        )
        self.app.define(meetings.QUEUE, **LESSONS)
        found = Meetings(
            self.app.database,
            self.store,
            self._scenarios,
            self._zoom,
            self.app.queue(meetings.QUEUE),
            self.app.clock,
            round(settings.lesson_duration.total_seconds() / 60),
            self._tell_link,
        )
        self._notifications.service.followers.append(found)
        return found

    async def _tell_link(self, lead: Lead) -> None:
        if self.bot is not None:
            await self.bot.tell_link(lead)

    # ── For the rest of Yamchi ────────────────────────────────────────────────────────────────────────────────────

    def declare(self) -> None:
        if self.settings.telegram_bot != "off":
            self.app.define(
                QUEUE, concurrency=5, attempts=3, backoff=["5s", "1m", "5m"], keep_completed=1_000
            )

        if self.meetings is not None:
            self.app.define(meetings.QUEUE, **LESSONS)

    def serve(self) -> None:
        if self.sheet is not None:
            self.app.service("leads in Google Sheets", self.sheet.watch)
        if self.meetings is not None:
            handlers = self.app.queue(meetings.QUEUE).definition.handlers
            handlers.setdefault(meetings.JOB, Handler(meetings.JOB, self.meetings.handle))
            self.app.service("lesson meetings", self.meetings.watch)
        if self.listener is None:
            return
        self.app.queue(QUEUE).definition.handlers.setdefault(JOB, Handler(JOB, self.listener.handle))
        secret, url = self.settings.telegram_webhook_secret, self.app.settings.public_url
        if self.settings.telegram_bot == "polling":
            self.app.service("telegram bot", self.listener.poll)
        elif secret is not None and url is not None:
            where, word = f"{url.rstrip('/')}{WEBHOOK}", secret.get_secret_value()
            self.app.service("telegram webhook", partial(self.listener.announce, where, word))

    def static(self) -> dict[str, Path]:
        return {"/leads-board": Path(__file__).parent / "static" / "board"}

    def pages(self) -> Iterable[BoardPage]:
        yield BoardPage("Leads", "/leads", "/leads-board/leads.js")

    async def checks(self) -> Iterable[Check]:
        if self.settings.tilda_secret is None:
            found = [Check("leads", None, "Tilda's webhook takes nothing until TILDA_SECRET is set")]
        else:
            found = [Check("leads", True, "Tilda's webhook is at /api/webhooks/tilda")]
        if self.sheet is not None:
            found += await ask("google sheets", self.sheet.check)
        if self.settings.telegram_bot == "webhook" and self.app.settings.public_url is None:
            said = f"set PUBLIC_URL, or tell Telegram yourself that its updates go to {WEBHOOK} (setWebhook)"
            found.append(Check("telegram bot", None, said))
        elif self.settings.telegram_bot != "off":
            found.append(Check("telegram bot", True, f"hears people by {self.settings.telegram_bot}"))
        return found

    async def erase(self, user_id: str) -> Mapping[str, int]:
        """A lead is a person of the same id: its runs are stopped, then it is forgotten."""
        runs = await self._scenarios.forget(KIND, user_id)
        lead = await self.store.find(user_id)
        if lead is not None and lead.tg_id is not None:
            for name in ("tg_lead", "tg_wrong", "ai_history", "ai_rate"):
                await self.app.keys.delete(f"{name}:{lead.tg_id}")
        found = await self.store.forget(user_id)
        if self.meetings is not None:
            await self.meetings.forget(user_id)
        return {"leads": found, "lead_runs": runs}

    async def close(self) -> None:
        if self.chat is not None:
            await self.chat.close()
        if self._talk is not None:
            await self._talk.close()
        if self.meetings is not None:
            await self._zoom.close()


def _bot_url(name: str | None) -> str | None:
    return None if name is None else f"https://t.me/{name.removeprefix('@')}"
