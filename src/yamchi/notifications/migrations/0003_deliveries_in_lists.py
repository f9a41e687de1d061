"""Lists of deliveries, of all, of a status and of a campaign, begin with the newest without sorting all of them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_index("delivery_by_time", "notification_delivery", ["status", "created_at"])
    op.drop_index("delivery_of_campaign", "notification_delivery")
    is_of_one = sa.text("campaign_id IS NOT NULL")
    op.create_index(
        "delivery_of_campaign",
        "notification_delivery",
        ["campaign_id", "status", "created_at"],
        sqlite_where=is_of_one,
        postgresql_where=is_of_one,
    )
