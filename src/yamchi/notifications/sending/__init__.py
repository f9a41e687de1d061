"""From an event to a message handed to its provider, and what became of it.

service.py          an event becomes jobs in the queue
processor.py        a job becomes a message: start here
deliveries.py       the table of deliveries: the status of each job, and its attempts
delivery_views.py   looking at it: one, those of an event, pages
statuses.py         the statuses, and which of them are final
retry.py            what a failed attempt means for the delivery
digests.py          messages that are collected and sent as one
direct.py           messages to an address instead of a user
email_queue.py      the queue `email_queue`, which other programs fill
http_input.py       checks on jobs that come over HTTP; test keys
attachments.py      files that go with a message
unknown.py          deliveries whose answer was lost: a person decides
dead_letters.py     jobs that failed for good: look and replay
history.py          what one person got and will get
campaign_counts.py  deliveries of a campaign by status
counters.py         metrics
"""
