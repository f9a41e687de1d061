"""Where a contender works: given to its processes in the environment."""

import os

URL = os.environ.get("BENCH_URL", "")
QUEUE = os.environ.get("BENCH_QUEUE", "bench")

CONCURRENCY = 100
THREADS = int(os.environ.get("BENCH_THREADS", "8"))
"""For workers that run jobs in threads."""

TUNED = bool(os.environ.get("BENCH_TUNED"))
"""Whether to be set up better than the library's documentation shows."""

KEEP_COMPLETED, KEEP_FAILED = 100, 50
"""How many finished jobs are kept, by those that can keep some."""
