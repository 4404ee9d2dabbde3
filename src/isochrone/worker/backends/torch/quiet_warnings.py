"""Lets torch warn of its own code without an effect on a load.

Python has one list of filters for the whole process: a server that is started with ``-W error``, or a python model that
changes them, would turn a warning inside of torch's compiler into a load that fails. Loads on several threads may
overlap: the last one to end restores the filters.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_inside = 0
_filters: warnings.catch_warnings[None] | None = None


@contextmanager
def quiet_warnings() -> Iterator[None]:
    global _inside, _filters
    with _LOCK:
        if not _inside:
            _filters = warnings.catch_warnings()
            _filters.__enter__()
            warnings.simplefilter("ignore")
        _inside += 1
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            if not _inside and _filters is not None:
                _filters.__exit__(None, None, None)
                _filters = None
