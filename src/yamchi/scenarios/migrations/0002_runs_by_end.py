"""Runs that ended long ago are found without going through all of them."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_index("run_by_end", "scenario_runs", ["status", "ended_at"])
