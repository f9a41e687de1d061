"""Letters and events, beside what people write by hand: `.venv-bench/bin/python -m bench.notifications.run`.

`run` starts the servers and takes turns, `letters` is the pile of letters each contender sends to Postfix's
`smtp-sink`, `events` is the API under load beside a bare endpoint. Only ratios within one run mean anything.
"""
