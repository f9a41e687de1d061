"""Leads in a Google spreadsheet (`LEADS=sheets`), one row per lead and a sheet for the log.

The tables stay the working copy, so that a step's fields and the next step are one transaction, and Google's quota is no
part of it. What changes is noted in that transaction, written to the spreadsheet in batches, and what people change there is
taken over.
"""
