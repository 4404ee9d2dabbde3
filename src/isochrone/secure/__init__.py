"""Who may do what, what may run, and the record of it: one room for each.

Decisions are pure. Nothing here knows of requests, tensors or the store: servers ask, and enforce the answer.
"""
