"""What notifications need: people, events, deliveries and their attempts, templates, rules, circuits, the mailbox."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("user_id", sa.String(64), primary_key=True),
        sa.Column("email", sa.String(320)),
        sa.Column("phone", sa.String(32)),
        sa.Column("telegram_id", sa.String(64)),
        sa.Column("locale", sa.String(16)),
        sa.Column("timezone", sa.String(64)),
        sa.Column("attributes", sa.JSON, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("event_id", sa.String(255), primary_key=True),
        sa.Column("event_type", sa.String(255), nullable=False),
        sa.Column("user_id", sa.String(64)),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("occurred_at", _MOMENT, nullable=False),
        sa.Column("received_at", _MOMENT, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
    )
    op.create_index("event_unfinished", "events", ["state", "received_at"])
    op.create_table(
        "notification_delivery",
        sa.Column("job_id", sa.String(64), primary_key=True),
        sa.Column("channel", sa.String(32), nullable=False),
        sa.Column("template_code", sa.String(255), nullable=False),
        sa.Column("user_id", sa.String(64)),
        sa.Column("event_id", sa.String(255)),
        sa.Column("campaign_id", sa.String(255)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("last_error", sa.Text),
        sa.Column("provider_message_id", sa.String(255)),
        sa.Column("job", sa.JSON),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
        sa.Column("sent_at", _MOMENT),
    )
    op.create_index("delivery_of_user", "notification_delivery", ["user_id", "created_at"])
    op.create_index("delivery_of_event", "notification_delivery", ["event_id"])
    op.create_index("delivery_of_campaign", "notification_delivery", ["campaign_id", "status"])
    op.create_index("delivery_by_status", "notification_delivery", ["status", "updated_at"])
    op.create_table(
        "delivery_attempts",
        sa.Column("job_id", sa.String(64), primary_key=True),
        sa.Column("started_at", _MOMENT, primary_key=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("answer", sa.Text),
        sa.Column("finished_at", _MOMENT, nullable=False),
    )
    op.create_table(
        "templates",
        sa.Column("code", sa.String(255), primary_key=True),
        sa.Column("channel", sa.String(32), primary_key=True),
        sa.Column("locale", sa.String(16), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("subject", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("meta", sa.JSON, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
    )
    op.create_table(
        "rules",
        sa.Column("rule_id", sa.String(64), primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
        sa.Column("is_enabled", sa.Boolean, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
    )
    op.create_table(
        "circuits",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("opened_at", _MOMENT),
        sa.Column("retry_at", _MOMENT),
        sa.Column("reason", sa.Text),
    )
    op.create_table(
        "mailbox",
        sa.Column("message_id", sa.String(255), primary_key=True),
        sa.Column("received_at", _MOMENT, nullable=False),
        sa.Column("sender", sa.String(320), nullable=False),
        sa.Column("recipients", sa.JSON, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("message", sa.LargeBinary, nullable=False),
    )
    op.create_index("mailbox_by_time", "mailbox", ["received_at"])
