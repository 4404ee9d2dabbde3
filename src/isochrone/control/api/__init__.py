"""The control API: JSON under /v1. Every controller serves it.

It reads this controller's mirror and writes records; the leading controller acts on them. ``routes`` lists all
operations, ``openapi`` describes them, ``application`` assembles them, ``serving`` listens. ``callers`` decides whom it
serves, ``answers`` makes what it says of records. Must never act on the fleet by itself.
"""
