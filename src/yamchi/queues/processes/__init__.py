"""Handlers in child processes: a child that crashes, hangs or takes too much memory costs its own job and nothing else.

`pool.py` is the worker's side, `child.py` the program a child runs, `wire.py` what they say to each other; `importing.py`
keeps the program from beginning anew in a child.
"""
