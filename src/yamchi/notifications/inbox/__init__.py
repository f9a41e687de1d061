"""The inbox: messages that people read in the product, and updates for their open pages.

store.py         the messages
feed.py          changes, numbered in the order of their commits
hub.py           sends the feed to the pages that are connected to this process
tokens.py        tokens of a person's pages
channel.py       the channel `database`
live_channel.py  the channel `ws`
"""
