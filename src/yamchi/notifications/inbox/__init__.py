"""Messages read in the product: the inbox of each person, and what their open pages hear of at once.

`store` keeps the messages; `feed` is the order in which everything happened; `hub` brings it to the pages that are open
at this process; `tokens` say whose page it is.
"""
