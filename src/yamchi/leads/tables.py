"""`leads`, and `lead_log`: what happened to each of them."""

from sqlalchemy import JSON, Boolean, Column, Index, MetaData, String, Table, Text

from yamchi.storage.tables import Moment

metadata = MetaData()

leads = Table(
    "leads",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("source", String(32), nullable=False),  # tilda, event, api
    Column("name", String(255)),
    Column("email", String(320)),
    Column("phone", String(32)),
    Column("tg_id", String(32)),
    Column("locale", String(35)),
    Column("timezone", String(64)),
    Column("status", String(64), nullable=False),
    Column("bot_activated", Boolean, nullable=False),
    Column("confirmed", Boolean, nullable=False),
    Column("email_1_sent", Boolean, nullable=False),
    Column("email_1_sent_at", Moment),
    Column("email_2_sent", Boolean, nullable=False),
    Column("lesson_datetime", Moment),
    Column("zoom_link", Text),
    Column("zoom_meeting_id", String(64)),
    Column("taken_by", String(255)),  # who calls the lead, and since when
    Column("taken_at", Moment),
    Column("extra", JSON, nullable=False),  # other fields of the form, and those that scenarios set
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Index("lead_by_time", "created_at", "id"),
    Index("lead_by_status", "status", "created_at", "id"),
    Index("lead_by_phone", "phone"),
    Index("lead_by_email", "email"),
    Index("lead_by_chat", "tg_id"),
)

lead_log = Table(
    "lead_log",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("lead_id", String(64), nullable=False),
    Column("text", String(255), nullable=False),
    Column("data", JSON, nullable=False),
    Column("at", Moment, nullable=False),
    Index("log_of_lead", "lead_id", "at", "id"),
)

lesson_slots = Table(
    "lesson_slots",
    metadata,
    Column("starts_at", Moment, primary_key=True),  # who takes it first has it
    Column("lead_id", String(64), nullable=False),
    Index("slot_of_lead", "lead_id"),
)

zoom_meetings = Table(
    "zoom_meetings",
    metadata,
    Column("lead_id", String(64), primary_key=True),
    Column("meeting_id", String(64)),
    Column("link", Text),
    Column("starts_at", Moment),  # as Zoom has it
    Column("asked_at", Moment),  # when Zoom was first asked to create it
    Column("due_at", Moment),  # since when it is to be brought up to date; NULL when it is
    Column("due_id", String(64)),  # the end of the id of the job that does it
    Index("meeting_due", "due_at"),
)
