"""The audit log: who did what, and which agent called which model when.

Each process writes a log of its own, a directory of segments. A record carries the hash of the record before it, and
the seal beside the segments names the last one. Read ``records`` first, then ``log``. ``verification`` needs nothing
but the files, and the key if the log has one.

A change takes effect after its record is on the disk, and not without it. Payloads are never recorded.
"""
