"""The trace context of an attempt as a field of the request that goes out."""

from __future__ import annotations


def trace_parent_field(value: bytes) -> bytes:
    """A literal that can follow any encoded block (RFC 7541 §6.2.2: without indexing). ``value``: below 127 bytes."""
    return b"\x00\x0btraceparent%c%s" % (len(value), value)
