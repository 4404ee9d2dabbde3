"""Lets torch warn of its own code without an effect on a load.

Python has one list of filters for the whole process: a server that is started with ``-W error``, or a python model that
changes them, would turn a warning inside of torch's compiler into a load that fails.

The list is not replaced for the time of a load: another thread that replaces it meanwhile (``catch_warnings``) would
restore it in another order. Two filters stay in it instead, whose categories contain warnings only during a load: all
of the thread that loads, and on other threads, as torch's compiler has them, those of torch's own modules.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_inside = 0


class _Thread(threading.local):
    inside = 0


_THREAD = _Thread()


class _OfThread(type):
    def __subclasscheck__(cls, subclass: type) -> bool:
        return _THREAD.inside > 0


class _OfProcess(type):
    def __subclasscheck__(cls, subclass: type) -> bool:
        return _inside > 0


class _WhileThisThreadLoads(Warning, metaclass=_OfThread):
    """Every warning, while the current thread is inside."""


class _WhileAnyThreadLoads(Warning, metaclass=_OfProcess):
    """Every warning, while a thread is inside."""


@contextmanager
def quiet_warnings() -> Iterator[None]:
    """May be nested, and entered by several threads at once."""
    global _inside
    with _LOCK:
        _ensure_filters()
        _inside += 1
    _THREAD.inside += 1
    try:
        yield
    finally:
        _THREAD.inside -= 1
        with _LOCK:
            _inside -= 1


def _ensure_filters() -> None:
    """Puts the two filters in front of all others, unless they are there: the list may have been replaced."""
    if [category for _, _, category, _, _ in warnings.filters[:2]] != [_WhileThisThreadLoads, _WhileAnyThreadLoads]:
        warnings.filterwarnings("ignore", category=_WhileAnyThreadLoads, module=r"(torch|triton)(\.|$)")
        warnings.filterwarnings("ignore", category=_WhileThisThreadLoads)
