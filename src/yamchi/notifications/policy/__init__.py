"""What is to be sent, and whether it may be sent now.

rules.py       which event leads to which message
rule_store.py  where the rules come from: a file, then a table
model.py       what a job says of its handling: other channels, a digest, a cap, an escalation
context.py     everything known of a message before it is decided whether it is sent
checks.py      the decision: send, wait, suppress, or collect for a digest
caps.py        at most so many messages of a category to a person
fallback.py    the next channel of `first_of`
escalation.py  another channel when a message is not read in time
"""
