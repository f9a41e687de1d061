"""The limit of the PostgreSQL suite: pgmq's own functions on one connection, in batches of 100."""

import json
from collections.abc import Sequence

import psycopg
from pgmq.install import install_pgmq_from_sql

from bench.contenders.base import Payload, SyncContender
from bench.hits import hit
from bench.target import URL


class Contender(SyncContender):
    def open(self) -> None:
        self._db = psycopg.connect(URL, autocommit=True)
        if not self._db.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'pgmq'").fetchone():
            install_pgmq_from_sql(dsn=URL)
        self._db.execute("SELECT pgmq.create('bench')")

    def close(self) -> None:
        self._db.close()

    def add(self, payload: Payload) -> None:
        self._db.execute("SELECT pgmq.send('bench', %s::jsonb)", (json.dumps(payload),))

    def add_many(self, payloads: Sequence[Payload]) -> None:
        messages = [json.dumps(payload) for payload in payloads]
        self._db.execute("SELECT pgmq.send_batch('bench', %s::jsonb[])", (messages,))

    def work(self) -> None:
        self._db = psycopg.connect(URL, autocommit=True)
        read = "SELECT msg_id, message FROM pgmq.read_with_poll('bench', 30, 100, 5, 10)"
        while True:
            rows = self._db.execute(read).fetchall()
            for _, message in rows:
                hit(message["t"])
            if rows:
                self._db.execute("SELECT pgmq.archive('bench', %s::bigint[])", ([row[0] for row in rows],))
