"""The tables of leads: what is known of each, what happened to them, their lessons, and what a spreadsheet has of them."""

from sqlalchemy import JSON, Boolean, Column, Index, Integer, MetaData, String, Table, Text, text, true

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
    Column("made_person", Boolean, nullable=False, server_default=true()),  # else the person was there before
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Index("lead_by_time", "created_at", "id"),
    Index("lead_by_status", "status", "created_at", "id"),
    Index("lead_by_phone", "phone"),
    Index("lead_by_email", "email"),
    Index("lead_by_chat", "tg_id"),
    Index("lead_by_lesson", "lesson_datetime"),
)

lead_log = Table(
    "lead_log",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("lead_id", String(64), nullable=False),
    Column("text", String(255), nullable=False),
    Column("data", JSON, nullable=False),
    Column("at", Moment, nullable=False),
    Column(
        "number", Integer, nullable=False, server_default="0"
    ),  # counts a lead's lines; 0: from before that
    Index("log_of_lead", "lead_id", "number", "at", "id"),
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
    Column("asked_at", Moment),  # when Zoom was asked to create it; NULL when the link was told
    Column("due_at", Moment),  # since when it is to be brought up to date; NULL when it is
    Column("due_id", String(64)),  # the end of the id of the job that does it
    Index("meeting_due", "due_at"),
)

# What one process at a time does: reads and writes the spreadsheet, asks Telegram for updates.
lead_holds = Table(
    "lead_holds",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", String(64)),
    Column("held_until", Moment),
)

# ── Google Sheets ─────────────────────────────────────────────────────────────────────────────────────────────────

sheet_rows = Table(
    "sheet_rows",
    metadata,
    Column("lead_id", String(64), primary_key=True),
    Column("cells", JSON),  # as the sheet and we last agreed; NULL while it has no row
    Column("changes", Integer, nullable=False),
    Column("written", Integer, nullable=False),  # how many of the changes are in the sheet
    Column("asked_at", Moment),  # when Google was last asked to append it, until that is known to be done
    Column("is_away", Boolean, nullable=False),  # a person took the row out of the sheet
    Column("is_erased", Boolean, nullable=False),
    Index(
        "sheet_row_pending",
        "lead_id",
        sqlite_where=text("changes > written"),
        postgresql_where=text("changes > written"),
    ),
)

# Lines of the log that are not in the sheet yet.
sheet_lines = Table(
    "sheet_lines",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("lead_id", String(64), nullable=False),
    Column("cells", JSON, nullable=False),
    Column("at", Moment, nullable=False),
    Column("asked_at", Moment),
    Column("number", Integer, nullable=False, server_default="0"),
    Index("sheet_line_by_time", "at", "number", "id"),
    Index("sheet_line_of_lead", "lead_id"),
)
