"""Ids of traces and spans: never zero, not what a seeded model expects, and not the same in forked processes."""

from __future__ import annotations

import os
import random

from isochrone.observe.tracing.identities import new_span_id, new_trace_id


def test_ids_do_not_follow_pythons_generator() -> None:
    random.seed(7)
    first = (new_trace_id(), new_span_id())
    random.seed(7)
    assert (new_trace_id(), new_span_id()) != first
    assert all(0 < each < 2**128 for each in first)


def test_forked_processes_have_ids_of_their_own() -> None:
    found = set()
    for _ in range(2):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, new_trace_id().to_bytes(16, "big"))
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        found.add(os.read(reading, 16))
        os.close(reading)
    assert len(found) == 2
