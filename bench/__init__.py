"""Yamchi beside the queues a user would pick instead, on the same servers, in one run: `make bench`.

`run` starts the servers and takes turns between the contenders, `measure` measures one of them in processes of its
own, `report` makes the table and the picture, `checks` says which of our goals are met. Only ratios within one run
mean anything: the same machine is twice as fast at another hour.
"""
