"""Follow-ups that stop when the client reacts: durable flows, written in YAML, that wait, send, and give up in time."""
