"""Whether a model is being loaded onto a device by this process, or unloaded.

The driver holds locks while it loads code, allocates, captures, destroys graphs and frees: a launch may then wait, and
the event loop's thread must not make one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_loads = 0


@contextmanager
def loading() -> Iterator[None]:
    """A model is loaded inside, or memory of the device is freed. It may be nested."""
    global _loads
    with _LOCK:
        _loads += 1
    try:
        yield
    finally:
        with _LOCK:
            _loads -= 1


def is_loading() -> bool:
    return _loads > 0
