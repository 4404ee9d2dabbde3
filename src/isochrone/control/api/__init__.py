"""The control API: JSON under /v1, for the command line and everybody else. Any controller serves it.

It reads this controller's mirror and writes records; the leading controller acts on them. ``routes`` is the list of
all there is, ``openapi`` describes it, ``application`` puts it together, ``serving`` listens.
"""
