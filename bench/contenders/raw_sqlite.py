"""The limit of the embedded suite: SQLite and nothing else, one process, every commit on the disk."""

import json
import sqlite3
from collections.abc import Sequence
from time import sleep, time

from bench.contenders.base import Payload, SyncContender
from bench.hits import hit
from bench.target import URL

TABLES = """
    PRAGMA journal_mode=WAL;
    PRAGMA synchronous=FULL;
    CREATE TABLE IF NOT EXISTS job (
        id INTEGER PRIMARY KEY, queue TEXT NOT NULL, state INTEGER NOT NULL DEFAULT 0, run_at REAL NOT NULL DEFAULT 0,
        locked_until REAL, attempts INTEGER NOT NULL DEFAULT 0, payload TEXT NOT NULL
    );
    CREATE INDEX IF NOT EXISTS job_ready ON job(queue, run_at, id) WHERE state = 0;
"""
ADD = "INSERT INTO job (queue, payload) VALUES ('bench', ?)"
CLAIM = """
    UPDATE job SET state = 1, locked_until = ?, attempts = attempts + 1 WHERE id IN (
        SELECT id FROM job WHERE queue = 'bench' AND state = 0 AND run_at <= ? ORDER BY run_at, id LIMIT 100
    ) RETURNING id, payload, attempts
"""


class Contender(SyncContender):
    def open(self) -> None:
        self._db = sqlite3.connect(URL.removeprefix("sqlite:///"), isolation_level=None)
        self._db.executescript(TABLES)

    def close(self) -> None:
        self._db.close()

    def add(self, payload: Payload) -> None:
        self._db.execute(ADD, (json.dumps(payload),))

    def add_many(self, payloads: Sequence[Payload]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(ADD, [(json.dumps(payload),) for payload in payloads])
        self._db.execute("COMMIT")

    def work(self) -> None:
        """Acknowledge a batch and claim the next in one transaction."""
        self.open()
        done: list[tuple[int]] = []
        while True:
            now = time()
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("DELETE FROM job WHERE id = ?", done)
            rows = self._db.execute(CLAIM, (now + 30, now)).fetchall()
            self._db.execute("COMMIT")
            for _, payload, _ in rows:
                hit(json.loads(payload)["t"])
            done = [(row[0],) for row in rows]
            if not rows:
                sleep(0.01)
