"""Payments, their refunds, and what was learned about them."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """A table a subject."""
    _payments()
    _refunds()
    _events()


def _payments() -> None:
    op.create_table(
        "payments",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("provider", sa.String(32), nullable=False),
        sa.Column("provider_id", sa.String(128)),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("captured", sa.BigInteger, nullable=False),
        sa.Column("refunded", sa.BigInteger, nullable=False),
        sa.Column("capture", sa.Boolean, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("order_id", sa.String(255)),
        sa.Column("user_id", sa.String(64)),
        sa.Column("return_url", sa.Text),
        sa.Column("confirmation_url", sa.Text),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("checks", sa.Integer, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
        sa.Column("final_at", _MOMENT),
        sa.Column("due_at", _MOMENT),
        sa.Column("reconciled_at", _MOMENT),
        sa.UniqueConstraint("provider", "provider_id", name="payment_of_provider"),
    )
    op.create_index("payment_by_time", "payments", ["created_at"])
    op.create_index("payment_of_order", "payments", ["order_id"])
    op.create_index("payment_of_user", "payments", ["user_id"])
    op.create_index("payment_by_status", "payments", ["status", "created_at"])
    op.create_index("payment_due", "payments", ["due_at"])


def _refunds() -> None:
    op.create_table(
        "payment_refunds",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("payment_id", sa.String(64), nullable=False),
        sa.Column("provider_id", sa.String(128)),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
    )
    op.create_index("refund_of_payment", "payment_refunds", ["payment_id"])


def _events() -> None:
    op.create_table(
        "payment_events",
        sa.Column("event_id", sa.String(255), primary_key=True),
        sa.Column("payment_id", sa.String(64)),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("told_at", _MOMENT),
        sa.Column("is_for_rules", sa.Boolean, nullable=False),
    )
    op.create_index("event_of_payment", "payment_events", ["payment_id", "created_at"])
    op.create_index("payment_event_untold", "payment_events", ["is_for_rules", "told_at", "created_at"])
