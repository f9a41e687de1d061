"""What Supabase puts before its queues: the six functions of `pgmq_public` over HTTP, on a real PostgreSQL with pgmq.

PostgREST itself comes in no registry the project uses. This speaks its dialect for exactly these functions: the key check
of the gateway, the profile header, answers as JSON, errors with PostgreSQL's own codes.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from queue import Empty, SimpleQueue
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

KEY = "service-role-key"
NEW_KEY = "sb_secret_of_this_project"
"""As projects have them now: the gateway takes it as `apikey`, and PostgREST refuses it, because it is no JWT."""

# As Supabase installs them.
FUNCTIONS = """
CREATE SCHEMA IF NOT EXISTS pgmq_public;
CREATE FUNCTION pgmq_public.pop(queue_name text) RETURNS SETOF pgmq.message_record LANGUAGE sql
    AS $$ SELECT * FROM pgmq.pop(queue_name) $$;
CREATE FUNCTION pgmq_public.send(queue_name text, message jsonb, sleep_seconds integer DEFAULT 0) RETURNS SETOF bigint
    LANGUAGE sql AS $$ SELECT * FROM pgmq.send(queue_name, message, sleep_seconds) $$;
CREATE FUNCTION pgmq_public.send_batch(queue_name text, messages jsonb[], sleep_seconds integer DEFAULT 0)
    RETURNS SETOF bigint LANGUAGE sql AS $$ SELECT * FROM pgmq.send_batch(queue_name, messages, sleep_seconds) $$;
CREATE FUNCTION pgmq_public.archive(queue_name text, message_id bigint) RETURNS boolean LANGUAGE sql
    AS $$ SELECT pgmq.archive(queue_name, message_id) $$;
CREATE FUNCTION pgmq_public.delete(queue_name text, message_id bigint) RETURNS boolean LANGUAGE sql
    AS $$ SELECT pgmq.delete(queue_name, message_id) $$;
CREATE FUNCTION pgmq_public.read(queue_name text, sleep_seconds integer, n integer)
    RETURNS SETOF pgmq.message_record LANGUAGE sql AS $$ SELECT * FROM pgmq.read(queue_name, sleep_seconds, n) $$;
"""
_TYPES = {"messages": "jsonb[]", "message": "jsonb", "message_id": "bigint", "queue_name": "text"}
_ONE = {"archive", "delete"}
_STATUS = {"42P01": 404, "42883": 404, "42501": 403}


def prepare(url: str) -> None:
    """pgmq and the six functions in a fresh database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(files("pgmq").joinpath("sql/pgmq.sql").read_text().encode())
        connection.execute(FUNCTIONS)


class Postgrest(ThreadingHTTPServer):
    """A server of its own thread; `url` is what SUPABASE_URL is set to."""

    daemon_threads = True

    def __init__(self, database_url: str) -> None:
        self.database_url = database_url
        self.exposed = True
        self._idle: SimpleQueue[psycopg.Connection] = SimpleQueue()
        super().__init__(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
        while not self._idle.empty():
            self._idle.get().close()

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection]:
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = psycopg.connect(self.database_url, autocommit=True)
        try:
            yield connection
        finally:
            self._idle.put(connection)

    def call(self, function: str, arguments: dict[str, Any]) -> str:
        """The answer as PostgreSQL writes it: PostgREST does not read it either."""
        named = ", ".join(f"{name} => %({name})s::{_TYPES.get(name, 'integer')}" for name in arguments)
        values = {name: _adapted(name, value) for name, value in arguments.items()}
        whole = "to_json(answer)" if function in _ONE else "coalesce(json_agg(answer), '[]')"
        query = f"SELECT ({whole})::text FROM pgmq_public.{function}({named}) AS answer"
        with self._connection() as connection:
            row = connection.execute(query.encode(), values).fetchone()
        return str(row[0]) if row else "null"


def _adapted(name: str, value: Any) -> Any:
    if name == "messages":
        return [Jsonb(message) for message in value]
    return Jsonb(value) if name == "message" else value


class _Handler(BaseHTTPRequestHandler):
    server: Postgrest
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key, bearer = self.headers.get("apikey"), self.headers.get("Authorization")
        if key not in (KEY, NEW_KEY) or (key == KEY and bearer != f"Bearer {KEY}"):
            return self._answer(401, {"message": "Invalid API key"})
        if key == NEW_KEY and bearer is not None:
            return self._answer(401, {"code": "PGRST301", "message": "Expected 3 parts in JWT; got 1"})
        function = self.path.removeprefix("/rest/v1/rpc/")
        if self.headers.get("Content-Profile") != "pgmq_public" or not self.server.exposed:
            said = "The schema must be one of the following: public, graphql_public"
            return self._answer(406, {"code": "PGRST106", "message": said})
        if function not in ("send", "send_batch", "read", "pop", "archive", "delete"):
            return self._answer(
                404, {"code": "PGRST202", "message": f"Could not find the function {function}"}
            )
        try:
            return self._answer(200, self.server.call(function, json.loads(body)))
        except psycopg.Error as error:
            code = error.sqlstate or "XX000"
            return self._answer(
                _STATUS.get(code, 400), {"code": code, "message": error.diag.message_primary, "details": None}
            )

    def _answer(self, status: int, body: Any) -> None:
        content = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Tests say what went wrong themselves."""
