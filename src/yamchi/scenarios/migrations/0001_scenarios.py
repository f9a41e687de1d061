"""What scenarios need: definitions by version, runs, steps, events by key, what buttons did, and an outbox."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_MOMENT = sa.DateTime(timezone=True)
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "scenario_definitions",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("version", sa.String(12), primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
    )
    op.create_table(
        "scenario_runs",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("scenario", sa.String(64), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("version", sa.String(12), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("started_at", _MOMENT, nullable=False),
        sa.Column("ended_at", _MOMENT),
        sa.Column("event", sa.JSON, nullable=False),
        sa.Column("entity_kind", sa.String(64)),
        sa.Column("entity_id", sa.String(255)),
        sa.Column("user_id", sa.String(64)),
        sa.Column("position", sa.String(64)),
        sa.Column("since", _MOMENT, nullable=False),
        sa.Column("heard", _NUMBER, nullable=False),
        sa.Column("heard_at_start", _NUMBER, nullable=False),
        sa.Column("armed_step", sa.String(64)),
        sa.Column("arming", sa.Integer),
        sa.Column("due_at", _MOMENT),
        sa.Column("progress", sa.JSON, nullable=False),
        sa.Column("held_by", sa.String(255)),
        sa.Column("held_until", _MOMENT),
    )
    op.create_index("run_of_key", "scenario_runs", ["scenario", "key", "generation"], unique=True)
    is_living = sa.text("status = 'running'")
    op.create_index(
        "living_run_of_key",
        "scenario_runs",
        ["scenario", "key"],
        unique=True,
        sqlite_where=is_living,
        postgresql_where=is_living,
    )
    op.create_index("run_of_entity", "scenario_runs", ["entity_kind", "entity_id", "status"])
    op.create_index("run_of_user", "scenario_runs", ["user_id"])
    op.create_index("run_by_status", "scenario_runs", ["scenario", "status", "started_at"])
    op.create_table(
        "scenario_steps",
        sa.Column("run_id", sa.String(64), primary_key=True),
        sa.Column("step", sa.String(64), primary_key=True),
        sa.Column("arming", sa.Integer, primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("queue", sa.String(200)),
        sa.Column("key", sa.String(512)),
        sa.Column("due_at", _MOMENT),
        sa.Column("armed_at", _MOMENT, nullable=False),
        sa.Column("began_at", _MOMENT),
        sa.Column("ended_at", _MOMENT),
        sa.Column("reason", sa.Text),
        sa.Column("effects", sa.JSON),
        sa.Column("looked_at", _MOMENT),
    )
    op.create_index("pending_step", "scenario_steps", ["state", "due_at"])
    op.create_table(
        "scenario_events",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("scenario", sa.String(64), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("event_type", sa.String(255), nullable=False),
        sa.Column("event_id", sa.String(255), nullable=False),
        sa.Column("received_at", _MOMENT, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("event_of_key", "scenario_events", ["scenario", "key", "number"])
    op.create_index("event_by_time", "scenario_events", ["received_at"])
    op.create_table(
        "scenario_acts",
        sa.Column("act_id", sa.String(64), primary_key=True),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("done_by", sa.String(255), nullable=False),
        sa.Column("done_at", _MOMENT, nullable=False),
    )
    op.create_index("act_of_run", "scenario_acts", ["run_id"])
    op.create_table(
        "scenario_outbox",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("job_id", sa.String(255)),
        sa.Column("body", sa.JSON, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("outbox_of_job", "scenario_outbox", ["job_id"])
