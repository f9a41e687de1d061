"""Lists of runs, of all and of one key, begin with the newest without sorting all of them."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_index("run_by_start", "scenario_runs", ["started_at", "run_id"])
    op.create_index("run_by_key", "scenario_runs", ["key", "started_at"])
