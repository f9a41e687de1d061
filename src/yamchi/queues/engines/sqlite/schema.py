"""Tables of the SQLite engine. Readable with any SQLite tool: states are words, payloads are JSON, times are ms.

Each index serves one question and holds only the rows that question is about, so that a million waiting jobs
slow down neither `add` nor `claim`, and finished jobs cost nothing to those that wait.
Counts are kept, not counted: every statement that moves jobs between states also moves the numbers.
"""

MIGRATIONS = (
    """
    CREATE TABLE jobs (
        seq INTEGER PRIMARY KEY,
        queue TEXT NOT NULL,
        id TEXT NOT NULL,
        name TEXT NOT NULL,
        state TEXT NOT NULL,
        rank INTEGER NOT NULL,
        run_at INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        options TEXT,
        attempts_made INTEGER NOT NULL DEFAULT 0,
        slotted INTEGER NOT NULL DEFAULT 0,
        lease_until INTEGER,
        token TEXT,
        worker TEXT,
        cancelling INTEGER NOT NULL DEFAULT 0,
        started_at INTEGER,
        finished_at INTEGER,
        progress BLOB,
        result BLOB,
        failed_reason TEXT,
        stacktrace TEXT,
        payload BLOB NOT NULL
    );
    CREATE UNIQUE INDEX job_by_id ON jobs(queue, id);
    CREATE INDEX job_waiting ON jobs(queue, rank, run_at) WHERE state = 'waiting';
    CREATE INDEX job_delayed ON jobs(queue, run_at) WHERE state = 'delayed';
    CREATE INDEX job_active ON jobs(queue, lease_until) WHERE state = 'active';
    CREATE INDEX job_finished ON jobs(queue, state, finished_at) WHERE finished_at IS NOT NULL;

    CREATE TABLE counts (queue TEXT, state TEXT, n INTEGER NOT NULL, PRIMARY KEY (queue, state)) WITHOUT ROWID;
    CREATE TABLE paused (queue TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE job_logs (seq INTEGER, n INTEGER, line TEXT NOT NULL, PRIMARY KEY (seq, n)) WITHOUT ROWID;
    CREATE TABLE minutes (
        queue TEXT, minute INTEGER, completed INTEGER NOT NULL, failed INTEGER NOT NULL, PRIMARY KEY (queue, minute)
    ) WITHOUT ROWID;
    CREATE TABLE dead_letters (
        queue TEXT, id TEXT, name TEXT, body BLOB NOT NULL, error TEXT NOT NULL, failed_at INTEGER NOT NULL,
        PRIMARY KEY (queue, id)
    ) WITHOUT ROWID;
    CREATE INDEX letter_by_time ON dead_letters(queue, failed_at);
    CREATE TABLE schedules (name TEXT PRIMARY KEY, fired_at INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE turns (queue TEXT, key TEXT, next REAL NOT NULL, PRIMARY KEY (queue, key)) WITHOUT ROWID;
    CREATE TABLE workers (id TEXT PRIMARY KEY, seen_at INTEGER NOT NULL, info TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE listeners (origin TEXT PRIMARY KEY, seen_at INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE events (n INTEGER PRIMARY KEY, origin TEXT NOT NULL, body BLOB NOT NULL);
    """,
    "CREATE INDEX turn_by_time ON turns(next)",
    "CREATE TABLE carried (queue TEXT PRIMARY KEY, carrier TEXT NOT NULL, until INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE noted_pauses (queue TEXT PRIMARY KEY, is_paused INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE doubts (queue TEXT, id TEXT, PRIMARY KEY (queue, id)) WITHOUT ROWID",
)
