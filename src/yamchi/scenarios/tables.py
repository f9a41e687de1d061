"""The tables of scenarios: definitions by version, runs, what became of each step, events by key, and an outbox."""

from sqlalchemy import JSON, BigInteger, Column, Index, Integer, MetaData, String, Table, Text, text

from yamchi.storage.tables import Moment

metadata = MetaData()

Number = BigInteger().with_variant(Integer, "sqlite")

scenario_definitions = Table(
    "scenario_definitions",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("version", String(12), primary_key=True),
    Column("body", JSON, nullable=False),
    Column("created_at", Moment, nullable=False),
)

scenario_runs = Table(
    "scenario_runs",
    metadata,
    Column("run_id", String(64), primary_key=True),
    Column("scenario", String(64), nullable=False),
    Column("key", String(255), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("version", String(12), nullable=False),
    Column("status", String(16), nullable=False),
    Column("reason", Text),
    Column("started_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("event", JSON, nullable=False),  # the one that started it
    Column("entity_kind", String(64)),
    Column("entity_id", String(255)),
    Column("user_id", String(64)),
    Column("position", String(64)),
    Column("since", Moment, nullable=False),
    Column("heard", Number, nullable=False),
    Column("heard_at_start", Number, nullable=False),
    Column("armed_step", String(64)),
    Column("arming", Integer),
    Column("due_at", Moment),
    Column("progress", JSON, nullable=False),  # armings, anchors, steps done, armings that repeat others
    # Somebody is sending for this run, and until when that is believed.
    Column("held_by", String(255)),
    Column("held_until", Moment),
    Index("run_of_key", "scenario", "key", "generation", unique=True),
    # One living run per key, whoever starts it.
    Index(
        "living_run_of_key",
        "scenario",
        "key",
        unique=True,
        sqlite_where=text("status = 'running'"),
        postgresql_where=text("status = 'running'"),
    ),
    Index("run_of_entity", "entity_kind", "entity_id", "status"),
    Index("run_of_user", "user_id"),
    Index("run_by_status", "scenario", "status", "started_at"),
    Index("run_by_end", "status", "ended_at"),
    Index("run_by_start", "started_at", "run_id"),
    Index("run_by_key", "key", "started_at"),
)

scenario_steps = Table(
    "scenario_steps",
    metadata,
    Column("run_id", String(64), primary_key=True),
    Column("step", String(64), primary_key=True),
    Column("arming", Integer, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("queue", String(200)),  # where its job lies, if it has one
    Column("key", String(512)),  # what names that job for other programs
    Column("due_at", Moment),
    Column("armed_at", Moment, nullable=False),
    Column("began_at", Moment),
    Column("ended_at", Moment),
    Column("reason", Text),
    Column("effects", JSON),  # what it sent, set and logged
    Column("looked_at", Moment),  # when the sweeper last asked after its job
    Index("pending_step", "state", "due_at"),
)

scenario_events = Table(
    "scenario_events",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("scenario", String(64), nullable=False),
    Column("key", String(255), nullable=False),
    Column("event_type", String(255), nullable=False),
    Column("event_id", String(255), nullable=False),
    Column("received_at", Moment, nullable=False),
    Index("event_of_key", "scenario", "key", "number"),
    Index("event_by_time", "received_at"),
    sqlite_autoincrement=True,  # a number is never given twice
)

# What buttons and links did; a link whose act is here has been used.
scenario_acts = Table(
    "scenario_acts",
    metadata,
    Column("act_id", String(64), primary_key=True),
    Column("run_id", String(64), nullable=False),
    Column("action", String(64), nullable=False),
    Column("done_by", String(255), nullable=False),
    Column("done_at", Moment, nullable=False),
    Index("act_of_run", "run_id"),
)

scenario_outbox = Table(
    "scenario_outbox",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("kind", String(16), nullable=False),  # job, data, drop or event
    Column("job_id", String(255)),
    Column("body", JSON, nullable=False),
    Column("created_at", Moment, nullable=False),
    Index("outbox_of_job", "job_id"),
    sqlite_autoincrement=True,
)
