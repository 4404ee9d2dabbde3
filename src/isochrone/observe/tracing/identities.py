"""Random ids of traces and spans.

A generator of its own: models that seed Python's must not repeat ids. Each forked process seeds it again, since
processes that serve as one would otherwise give the same ids.
"""

from __future__ import annotations

import os
import random

_generator = random.Random()
os.register_at_fork(after_in_child=_generator.seed)
_bits = _generator.getrandbits


def new_trace_id() -> int:
    return _bits(128) or 1


def new_span_id() -> int:
    return _bits(64) or 1
