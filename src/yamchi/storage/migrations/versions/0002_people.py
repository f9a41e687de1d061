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
