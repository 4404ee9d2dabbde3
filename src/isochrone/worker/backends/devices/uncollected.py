"""Keeps the garbage collector out of captures.

A collection in the middle of one could free tensors of other streams, which CUDA does not allow then. Loads on several
threads may capture at the same time: the last one to end lets the collector go on.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_captures = 0
_was_enabled = False


@contextmanager
def without_collections() -> Iterator[None]:
    global _captures, _was_enabled
    with _LOCK:
        if not _captures:
            _was_enabled = gc.isenabled()
            gc.disable()
        _captures += 1
    try:
        yield
    finally:
        with _LOCK:
            _captures -= 1
            if not _captures and _was_enabled:
                gc.enable()
