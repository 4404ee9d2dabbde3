"""Which cores run the server and which the load tools: affinity is inherited, so it is set around the start of each."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

#: None: every core that this process may use.
Cores = frozenset[int] | None


def parse_cores(text: str) -> frozenset[int]:
    """``0-3,8``. Raises ``ArgumentTypeError`` for anything else, and for cores that this process may not use."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise argparse.ArgumentTypeError(f"expected cores such as 0-3,8, given {text!r}")
        found.update(range(int(first), int(last or first) + 1))
    usable = os.sched_getaffinity(0)
    if not found <= usable:
        missing = ", ".join(map(str, sorted(found - usable)))
        raise argparse.ArgumentTypeError(f"expected cores of this machine, given {missing}, which it does not have")
    return frozenset(found)


@contextmanager
def on_cores(cores: Cores) -> Iterator[None]:
    """Processes that are started in the block run on these cores, then and later."""
    before = os.sched_getaffinity(0)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
