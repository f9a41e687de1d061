"""Leads, their log, and the lessons that are taken."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """A table a subject."""
    _leads()
    _log()
    _slots()


def _leads() -> None:
    op.create_table(
        "leads",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("source", sa.String(32), nullable=False),
        sa.Column("name", sa.String(255)),
        sa.Column("email", sa.String(320)),
        sa.Column("phone", sa.String(32)),
        sa.Column("tg_id", sa.String(32)),
        sa.Column("locale", sa.String(35)),
        sa.Column("timezone", sa.String(64)),
        sa.Column("status", sa.String(64), nullable=False),
        sa.Column("bot_activated", sa.Boolean, nullable=False),
        sa.Column("confirmed", sa.Boolean, nullable=False),
        sa.Column("email_1_sent", sa.Boolean, nullable=False),
        sa.Column("email_1_sent_at", _MOMENT),
        sa.Column("email_2_sent", sa.Boolean, nullable=False),
        sa.Column("lesson_datetime", _MOMENT),
        sa.Column("zoom_link", sa.Text),
        sa.Column("zoom_meeting_id", sa.String(64)),
        sa.Column("taken_by", sa.String(255)),
        sa.Column("taken_at", _MOMENT),
        sa.Column("extra", sa.JSON, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
    )
    op.create_index("lead_by_time", "leads", ["created_at", "id"])
    op.create_index("lead_by_status", "leads", ["status", "created_at", "id"])
    op.create_index("lead_by_phone", "leads", ["phone"])
    op.create_index("lead_by_email", "leads", ["email"])
    op.create_index("lead_by_chat", "leads", ["tg_id"])


def _log() -> None:
    op.create_table(
        "lead_log",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("lead_id", sa.String(64), nullable=False),
        sa.Column("text", sa.String(255), nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
    )
    op.create_index("log_of_lead", "lead_log", ["lead_id", "at", "id"])


def _slots() -> None:
    op.create_table(
        "lesson_slots",
        sa.Column("starts_at", _MOMENT, primary_key=True),
        sa.Column("lead_id", sa.String(64), nullable=False),
    )
    op.create_index("slot_of_lead", "lesson_slots", ["lead_id"])
