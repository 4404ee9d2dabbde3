"""The embedded store: one SQLite file that all processes of one machine share.

All file access runs on a thread of its own (``thread``). Must never block the event loop on a disk or a lock.
"""
