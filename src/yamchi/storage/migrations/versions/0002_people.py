"""What reaching people needs: their wishes, their devices, their inbox, and campaigns."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """A section a subject."""
    _preferences()
    _devices()
    _inbox()
    _campaigns()


def _preferences() -> None:
    """What people want, and what they must not get."""


def _devices() -> None:
    """Browsers that asked for push messages, and the limits that senders share."""


def _inbox() -> None:
    """Messages kept for the person to read in the product."""


def _campaigns() -> None:
    """Messages to many, and how far each has come."""
