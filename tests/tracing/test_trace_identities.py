"""Ids of traces and spans: never zero, not what a seeded model expects, and not the same in forked processes."""

from __future__ import annotations

import random
import subprocess
import sys

from isochrone.observe.tracing.identities import new_span_id, new_trace_id

_FORKS = """
import os
from isochrone.observe.tracing.identities import new_trace_id
for _ in range(2):
    child = os.fork()
    if not child:
        os.write(1, b"%d\\n" % new_trace_id())
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_ids_do_not_follow_pythons_generator() -> None:
    random.seed(7)
    first = (new_trace_id(), new_span_id())
    random.seed(7)
    assert (new_trace_id(), new_span_id()) != first
    assert all(0 < each < 2**128 for each in first)


def test_forked_processes_have_ids_of_their_own() -> None:
    ran = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, timeout=60, check=True)
    assert len(set(ran.stdout.split())) == 2
