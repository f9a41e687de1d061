"""The tables of notifications. Times are UTC in the database and milliseconds in the code; JSON is JSON in both."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

from yamchi.storage.tables import Moment

metadata = MetaData()

users = Table(
    "users",
    metadata,
    Column("user_id", String(64), primary_key=True),
    Column("email", String(320)),
    Column("phone", String(32)),
    Column("telegram_id", String(64)),
    Column("locale", String(35)),
    Column("timezone", String(64)),
    Column("quiet_from", String(5)),
    Column("quiet_until", String(5)),
    Column("attributes", JSON, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Index("user_by_email", "email"),
)

# ── What people want, and what they must not get ──────────────────────────────────────────────────────────────────

preferences = Table(
    "preferences",
    metadata,
    Column("user_id", String(64), primary_key=True),
    Column("channel", String(32), primary_key=True),  # or *
    Column("category", String(64), primary_key=True),  # or *
    Column("is_allowed", Boolean, nullable=False),
    Column("updated_at", Moment, nullable=False),
)

suppressions = Table(
    "suppressions",
    metadata,
    Column("address", String(320), primary_key=True),
    Column("channel", String(32), primary_key=True),
    Column("user_id", String(64)),
    Column("reason", Text, nullable=False),
    Column("job_id", String(64)),
    Column("created_at", Moment, nullable=False),
    Index("suppression_of_user", "user_id"),
    Index("suppression_by_time", "created_at"),
)

# Locked while a process counts what a person got under a cap, so that processes count one after the other.
cap_turns = Table(
    "cap_turns",
    metadata,
    Column("user_id", String(64), primary_key=True),
    Column("channel", String(32), primary_key=True),
    Column("category", String(64), primary_key=True),
    Column("touched_at", Moment, nullable=False),
)

cap_uses = Table(
    "cap_uses",
    metadata,
    Column("job_id", String(64), primary_key=True),
    Column("user_id", String(64), nullable=False),
    Column("channel", String(32), nullable=False),
    Column("category", String(64), nullable=False),
    Column("used_at", Moment, nullable=False),
    Index("uses_of_cap", "user_id", "channel", "category", "used_at"),
)

digests = Table(
    "digests",
    metadata,
    Column("digest_id", String(64), primary_key=True),
    Column("user_id", String(64), nullable=False),
    Column("due_at", Moment, nullable=False),
    Column("touched_at", Moment, nullable=False),
    Column("closed_at", Moment),  # from then on nothing is added
    Column("carrier", String(64), nullable=False),  # the job that tells of it
    Index("digest_of_user", "user_id"),
)

digest_items = Table(
    "digest_items",
    metadata,
    Column("job_id", String(64), primary_key=True),
    Column("digest_id", String(64), nullable=False),
    Column("user_id", String(64), nullable=False),
    Column("event_type", String(255), nullable=False),
    Column("data", JSON, nullable=False),
    Column("collected_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Index("item_of_digest", "digest_id", "collected_at"),
    Index("item_of_user", "user_id"),
)

# ── What happened, and what became of it ──────────────────────────────────────────────────────────────────────────

events = Table(
    "events",
    metadata,
    Column("event_id", String(255), primary_key=True),
    Column("event_type", String(255), nullable=False),
    Column("user_id", String(64)),
    Column("data", JSON, nullable=False),
    Column("occurred_at", Moment, nullable=False),
    Column("received_at", Moment, nullable=False),
    # `accepted` until every job of the event is in its queue; a sweeper finishes what a crash interrupted.
    Column("state", String(16), nullable=False),
    Index("event_unfinished", "state", "received_at"),
)

notification_delivery = Table(
    "notification_delivery",
    metadata,
    Column("job_id", String(64), primary_key=True),
    Column("channel", String(32), nullable=False),
    Column("template_code", String(255), nullable=False),
    Column("user_id", String(64)),
    Column("event_id", String(255)),
    Column("campaign_id", String(255)),
    Column("status", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("last_error", Text),
    Column("provider_message_id", String(255)),
    Column("job", JSON),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("sent_at", Moment),
    Column("due_at", Moment),  # what it waits for, if that is known
    Column("variant", String(64)),  # of its campaign
    Index("delivery_of_user", "user_id", "created_at"),
    Index("delivery_of_event", "event_id"),
    Index("delivery_by_status", "status", "updated_at"),
    Index("delivery_by_time", "status", "created_at"),
)
# Most letters are of no campaign: their changes of status write one index less.
Index(
    "delivery_of_campaign",
    notification_delivery.c.campaign_id,
    notification_delivery.c.status,
    notification_delivery.c.created_at,
    sqlite_where=notification_delivery.c.campaign_id.is_not(None),
    postgresql_where=notification_delivery.c.campaign_id.is_not(None),
)

delivery_attempts = Table(
    "delivery_attempts",
    metadata,
    Column("job_id", String(64), primary_key=True),
    Column("started_at", Moment, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("answer", Text),
    Column("finished_at", Moment, nullable=False),
)

templates = Table(
    "templates",
    metadata,
    Column("code", String(255), primary_key=True),
    Column("channel", String(32), primary_key=True),
    Column("locale", String(35), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("subject", Text),
    Column("body", Text, nullable=False),
    Column("meta", JSON, nullable=False),
    Column("created_at", Moment, nullable=False),
)

rules = Table(
    "rules",
    metadata,
    Column("rule_id", String(64), primary_key=True),
    Column("position", Integer, nullable=False),
    Column("body", JSON, nullable=False),
    Column("is_enabled", Boolean, nullable=False),
    Column("updated_at", Moment, nullable=False),
)

circuits = Table(
    "circuits",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("failures", Integer, nullable=False),
    Column("opened_at", Moment),
    Column("retry_at", Moment),
    Column("reason", Text),
)

mailbox = Table(
    "mailbox",
    metadata,
    Column("message_id", String(255), primary_key=True),
    Column("received_at", Moment, nullable=False),
    Column("sender", String(320), nullable=False),
    Column("recipients", JSON, nullable=False),
    Column("subject", Text, nullable=False),
    Column("message", LargeBinary, nullable=False),
    Index("mailbox_by_time", "received_at"),
)

# ── Campaigns ─────────────────────────────────────────────────────────────────────────────────────────────────────

campaigns = Table(
    "campaigns",
    metadata,
    Column("campaign_id", String(255), primary_key=True),
    Column("body", JSON, nullable=False),  # as asked for, without its list of people
    Column(
        "fingerprint", String(64), nullable=False
    ),  # of the whole request: the same again is the same campaign
    Column("state", String(16), nullable=False),
    Column("total", Integer),  # how many people it was for when it was made
    Column("report", JSON),  # what became of the rows of its list
    # Everybody up to `cursor` has a delivery, everybody up to `queued` is also in the queue.
    Column("cursor", String(64)),
    Column("queued", String(64)),
    Column("next_turn", Moment),
    Column("holder", String(64)),  # who fans out, and until when nobody else may
    Column("held_until", Moment),
    Column("created_at", Moment, nullable=False),
    Column("fanned_out_at", Moment),
    Index("campaign_unfinished", "fanned_out_at", "state"),
    Index("campaign_by_time", "created_at"),
)

campaign_people = Table(
    "campaign_people",
    metadata,
    Column("campaign_id", String(255), primary_key=True),
    Column("user_id", String(64), primary_key=True),
    Column("data", JSON),
)

# Kept, not counted. A process has its shard, so that processes do not wait for each other at one row.
campaign_counts = Table(
    "campaign_counts",
    metadata,
    Column("campaign_id", String(255), primary_key=True),
    Column("variant", String(64), primary_key=True),
    Column("status", String(16), primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("n", Integer, nullable=False),
)

null_ledger = Table(
    "null_ledger",
    metadata,
    Column("entry", Integer, primary_key=True),
    Column("job_id", String(64), nullable=False),
    Column("user_id", String(64)),
    Column("received_at", Moment, nullable=False),
)

inbox = Table(
    "inbox",
    metadata,
    Column("message_id", String(64), primary_key=True),
    Column("user_id", String(64), nullable=False),
    Column("template_code", String(255), nullable=False),
    Column("category", String(64), nullable=False),
    Column("title", Text),
    Column("text", Text, nullable=False),
    Column("url", Text),
    Column("buttons", JSON, nullable=False),
    Column("is_urgent", Boolean, nullable=False),
    Column("is_archived", Boolean, nullable=False),
    Column("read_at", Moment),
    Column("created_at", Moment, nullable=False),
    Index("inbox_of_user", "user_id", "is_archived", "created_at", "message_id"),
)
Index(
    "inbox_unread",
    inbox.c.user_id,
    inbox.c.is_archived,
    inbox.c.created_at,
    inbox.c.message_id,
    sqlite_where=inbox.c.read_at.is_(None),
    postgresql_where=inbox.c.read_at.is_(None),
)

# What open pages have to hear, in the order in which it was committed: on PostgreSQL the default of `seq` sees to that.
live_feed = Table(
    "live_feed",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("user_id", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("message_id", String(64)),
    Column("body", Text),
    Column("once", String(64), unique=True),  # the same again is not told again
    Column("is_delivered", Boolean, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Index("feed_of_user", "user_id", "seq"),
    sqlite_autoincrement=True,
)

push_subscriptions = Table(
    "push_subscriptions",
    metadata,
    Column("subscription_id", String(64), primary_key=True),  # of its endpoint
    Column("user_id", String(64), nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("p256dh", String(128), nullable=False),
    Column("auth", String(32), nullable=False),
    Column("device", String(255)),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Index("subscription_of_user", "user_id"),
)

# Which parts of a message that goes out in several have arrived: a retry sends the others.
delivery_parts = Table(
    "delivery_parts",
    metadata,
    Column("job_id", String(64), primary_key=True),
    Column("part", String(64), primary_key=True),
    Column("answer", String(255)),
    Column("arrived_at", Moment, nullable=False),
    Index("part_by_time", "arrived_at"),
)

# A limit that all processes share has a row for each message of its period: a permit, and from when it may be used again.
# In milliseconds, to be reckoned with in SQL.
send_turns = Table(
    "send_turns",
    metadata,
    Column("key", String(128), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("next", Double, nullable=False),
    Column("held_until", Double, nullable=False),
)
