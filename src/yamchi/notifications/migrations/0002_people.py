"""What reaching people needs: their wishes, their devices, their inbox, and campaigns."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_MOMENT = sa.DateTime(timezone=True)
_FEED_LOCK = 0x66656564


def upgrade() -> None:
    """A section a subject."""
    _secrets()
    _preferences()
    _devices()
    _inbox()
    _campaigns()


def _secrets() -> None:
    """Keys that every process must have the same; today a table of the core, which makes it first."""
    op.create_table(
        "secrets",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
        if_not_exists=True,
    )


def _preferences() -> None:
    """What people want, and what they must not get."""
    op.add_column("users", sa.Column("quiet_from", sa.String(5)))
    op.add_column("users", sa.Column("quiet_until", sa.String(5)))
    op.add_column("notification_delivery", sa.Column("due_at", _MOMENT))
    op.create_table(
        "preferences",
        sa.Column("user_id", sa.String(64), primary_key=True),
        sa.Column("channel", sa.String(32), primary_key=True),
        sa.Column("category", sa.String(64), primary_key=True),
        sa.Column("is_allowed", sa.Boolean, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
    )
    op.create_table(
        "suppressions",
        sa.Column("address", sa.String(320), primary_key=True),
        sa.Column("channel", sa.String(32), primary_key=True),
        sa.Column("user_id", sa.String(64)),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("job_id", sa.String(64)),
        sa.Column("created_at", _MOMENT, nullable=False),
    )
    op.create_index("suppression_of_user", "suppressions", ["user_id"])
    op.create_index("suppression_by_time", "suppressions", ["created_at"])
    op.create_table(
        "cap_turns",
        sa.Column("user_id", sa.String(64), primary_key=True),
        sa.Column("channel", sa.String(32), primary_key=True),
        sa.Column("category", sa.String(64), primary_key=True),
        sa.Column("touched_at", _MOMENT, nullable=False),
    )
    op.create_table(
        "cap_uses",
        sa.Column("job_id", sa.String(64), primary_key=True),
        sa.Column("user_id", sa.String(64), nullable=False),
        sa.Column("channel", sa.String(32), nullable=False),
        sa.Column("category", sa.String(64), nullable=False),
        sa.Column("used_at", _MOMENT, nullable=False),
    )
    op.create_index("uses_of_cap", "cap_uses", ["user_id", "channel", "category", "used_at"])
    _digests()


def _digests() -> None:
    """What is collected to be told together."""
    op.create_table(
        "digests",
        sa.Column("digest_id", sa.String(64), primary_key=True),
        sa.Column("user_id", sa.String(64), nullable=False),
        sa.Column("due_at", _MOMENT, nullable=False),
        sa.Column("touched_at", _MOMENT, nullable=False),
        sa.Column("closed_at", _MOMENT),
        sa.Column("carrier", sa.String(64), nullable=False),
    )
    op.create_index("digest_of_user", "digests", ["user_id"])
    op.create_table(
        "digest_items",
        sa.Column("job_id", sa.String(64), primary_key=True),
        sa.Column("digest_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(64), nullable=False),
        sa.Column("event_type", sa.String(255), nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("collected_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT),
    )
    op.create_index("item_of_digest", "digest_items", ["digest_id", "collected_at"])
    op.create_index("item_of_user", "digest_items", ["user_id"])


def _devices() -> None:
    """Browsers that asked for push messages, and the limits that senders share."""
    op.create_table(
        "push_subscriptions",
        sa.Column("subscription_id", sa.String(64), primary_key=True),
        sa.Column("user_id", sa.String(64), nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("p256dh", sa.String(128), nullable=False),
        sa.Column("auth", sa.String(32), nullable=False),
        sa.Column("device", sa.String(255)),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("updated_at", _MOMENT, nullable=False),
    )
    op.create_index("subscription_of_user", "push_subscriptions", ["user_id"])
    op.create_table(
        "delivery_parts",
        sa.Column("job_id", sa.String(64), primary_key=True),
        sa.Column("part", sa.String(64), primary_key=True),
        sa.Column("answer", sa.String(255)),
        sa.Column("arrived_at", _MOMENT, nullable=False),
    )
    op.create_index("part_by_time", "delivery_parts", ["arrived_at"])
    op.create_table(
        "send_turns",
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("next", sa.Double, nullable=False),
        sa.Column("held_until", sa.Double, nullable=False),
    )


def _inbox() -> None:
    """Messages kept for the person to read in the product, and what open pages have to hear of."""
    op.create_table(
        "inbox",
        sa.Column("message_id", sa.String(64), primary_key=True),
        sa.Column("user_id", sa.String(64), nullable=False),
        sa.Column("template_code", sa.String(255), nullable=False),
        sa.Column("category", sa.String(64), nullable=False),
        sa.Column("title", sa.Text),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("url", sa.Text),
        sa.Column("buttons", sa.JSON, nullable=False),
        sa.Column("is_urgent", sa.Boolean, nullable=False),
        sa.Column("is_archived", sa.Boolean, nullable=False),
        sa.Column("read_at", _MOMENT),
        sa.Column("created_at", _MOMENT, nullable=False),
    )
    order = ["user_id", "is_archived", "created_at", "message_id"]
    op.create_index("inbox_of_user", "inbox", order)
    unread = sa.text("read_at IS NULL")
    op.create_index("inbox_unread", "inbox", order, sqlite_where=unread, postgresql_where=unread)
    op.create_table(
        "live_feed",
        _order(),
        sa.Column("user_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("message_id", sa.String(64)),
        sa.Column("body", sa.Text),
        sa.Column("once", sa.String(64), unique=True),
        sa.Column("is_delivered", sa.Boolean, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT),
        sqlite_autoincrement=True,
    )
    op.create_index("feed_of_user", "live_feed", ["user_id", "seq"])


def _order() -> sa.Column[int]:
    """Numbers that become visible in their order, so that whoever follows them by the last one seen misses nothing.

    SQLite has one writer at a time. On PostgreSQL a transaction with a lower number could commit after one with a higher
    number, so a number is given only to the holder of a lock, which ends with the transaction.
    """
    if op.get_bind().dialect.name == "sqlite":
        return sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True)
    op.execute("CREATE SEQUENCE live_feed_order AS bigint")
    number = f"CASE WHEN pg_advisory_xact_lock({_FEED_LOCK})::text = '' THEN nextval('live_feed_order') END"
    return sa.Column("seq", sa.BigInteger, primary_key=True, server_default=sa.text(number))


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
