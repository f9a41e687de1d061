"""`python -m bench.install`: the servers of the tests, and the tools that only measurements need."""

import sys

from tests.services.install import install

TOOLS = {"smtp-sink": "postfix", "wrk": "wrk"}

if __name__ == "__main__":
    for problem in install(TOOLS):
        print(problem, file=sys.stderr)
