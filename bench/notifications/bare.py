"""What people write by hand: a FastAPI endpoint that inserts one row into SQLite. `python -m bench.notifications.bare PORT`."""

import os
import sqlite3
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

database = sqlite3.connect(os.environ["BENCH_DATABASE"], check_same_thread=False, isolation_level=None)
for pragma in ("journal_mode=WAL", "synchronous=FULL"):
    database.execute(f"PRAGMA {pragma}")
database.execute(
    "CREATE TABLE IF NOT EXISTS bare_events (event_id TEXT PRIMARY KEY, event_type TEXT, data TEXT)"
)

app = FastAPI()


class Event(BaseModel):
    event_type: str
    event_id: str
    user_id: str
    data: dict[str, Any]


@app.post("/events", status_code=202)
def accept(event: Event) -> dict[str, str]:
    row = (event.event_id, event.event_type, event.model_dump_json())
    database.execute("INSERT OR IGNORE INTO bare_events VALUES (?, ?, ?)", row)
    return {"event_id": event.event_id}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
