"""What reaching people needs: their wishes, their devices, their inbox, and campaigns."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """A section a subject."""
    _secrets()
    _preferences()
    _devices()
    _inbox()
    _campaigns()


def _secrets() -> None:
    """Keys that every process must have the same."""
    op.create_table(
        "secrets",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )


def _preferences() -> None:
    """What people want, and what they must not get."""


def _devices() -> None:
    """Browsers that asked for push messages, and the limits that senders share."""


def _inbox() -> None:
    """Messages kept for the person to read in the product."""


def _campaigns() -> None:
    """Messages to many, and how far each has come."""
    op.add_column("notification_delivery", sa.Column("variant", sa.String(64)))
    op.create_index("user_by_email", "users", ["email"])
    op.create_table(
        "campaigns",
        sa.Column("campaign_id", sa.String(255), primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("total", sa.Integer),
        sa.Column("report", sa.JSON),
        sa.Column("cursor", sa.String(64)),
        sa.Column("queued", sa.String(64)),
        sa.Column("next_turn", _MOMENT),
        sa.Column("holder", sa.String(64)),
        sa.Column("held_until", _MOMENT),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("fanned_out_at", _MOMENT),
    )
    op.create_index("campaign_unfinished", "campaigns", ["fanned_out_at", "state"])
    op.create_index("campaign_by_time", "campaigns", ["created_at"])
    op.create_table(
        "campaign_people",
        sa.Column("campaign_id", sa.String(255), primary_key=True),
        sa.Column("user_id", sa.String(64), primary_key=True),
        sa.Column("data", sa.JSON),
    )
    op.create_table(
        "campaign_counts",
        sa.Column("campaign_id", sa.String(255), primary_key=True),
        sa.Column("variant", sa.String(64), primary_key=True),
        sa.Column("status", sa.String(16), primary_key=True),
        sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("n", sa.Integer, nullable=False),
    )
    op.create_table(
        "null_ledger",
        sa.Column("entry", sa.Integer, primary_key=True),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(64)),
        sa.Column("received_at", _MOMENT, nullable=False),
    )
