"""People: how each is reached, what they want to get, and which addresses get nothing.

model.py         a person as the rest of notifications sees one
recipients.py    the table `users`
preferences.py   which messages a person wants, by channel and category; quiet hours
quiet_hours.py   the arithmetic of quiet hours in a person's time zone
suppressions.py  addresses that get nothing
unsubscribe.py   signed links that change one preference
"""
