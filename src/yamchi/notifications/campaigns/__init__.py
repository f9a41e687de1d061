"""Campaigns: one message to very many people, fanned out in batches, with a cursor that outlives a crash.

model.py      what a caller asks for
filters.py    `where`: a small filter on people, compiled to SQL
lists.py      people by CSV, read row by row
audience.py   whom a campaign is for, window by window
enrollment.py people are put on a campaign's list
planning.py   the message of each person
rehearsal.py  the message of the first person is rendered before a campaign begins
store.py      the campaigns themselves: made once, paused, resumed, cancelled, shown
fanout.py     from the audience to the queue, so that a crash anywhere loses and doubles nobody
limits.py     what a worker asks right before sending: is the campaign running, does its rate allow one more
"""
