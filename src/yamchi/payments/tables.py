"""`payments`, the refunds asked for, and `payment_events`: everything that was learned about a payment, once each."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from yamchi.storage.tables import Moment

metadata = MetaData()

payments = Table(
    "payments",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("provider", String(32), nullable=False),
    Column("provider_id", String(128)),  # NULL until the provider has answered
    Column("status", String(32), nullable=False),
    Column("currency", String(3), nullable=False),
    Column(
        "amount", BigInteger, nullable=False
    ),  # in the smallest units of the currency, as are the next two
    Column("captured", BigInteger, nullable=False),
    Column("refunded", BigInteger, nullable=False),
    Column("capture", Boolean, nullable=False),
    Column("description", Text),
    Column("order_id", String(255)),
    Column("user_id", String(64)),
    Column("return_url", Text),
    Column("confirmation_url", Text),
    Column("metadata", JSON, nullable=False),
    Column("reason", Text),  # why it was canceled or refused
    Column("checks", Integer, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("final_at", Moment),
    Column("due_at", Moment),  # when the next check is expected; NULL once nothing more is to be asked
    Column("reconciled_at", Moment),
    UniqueConstraint("provider", "provider_id", name="payment_of_provider"),
    Index("payment_by_time", "created_at"),
    Index("payment_of_order", "order_id"),
    Index("payment_of_user", "user_id"),
    Index("payment_by_status", "status", "created_at"),
    Index("payment_due", "due_at"),
)

payment_refunds = Table(
    "payment_refunds",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("payment_id", String(64), nullable=False),
    Column("provider_id", String(128)),
    Column("status", String(32), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("reason", Text),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Index("refund_of_payment", "payment_id"),
)

payment_events = Table(
    "payment_events",
    metadata,
    Column("event_id", String(255), primary_key=True),
    Column("payment_id", String(64)),
    Column("kind", String(64), nullable=False),  # payment.succeeded, webhook, reconciliation …
    Column("data", JSON, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("told_at", Moment),  # when rules and scenarios had it; NULL for what nobody is told of, too
    Column("is_for_rules", Boolean, nullable=False),
    Index("event_of_payment", "payment_id", "created_at"),
    Index("payment_event_untold", "is_for_rules", "told_at", "created_at"),
)
