"""Exported programs are read without running code of theirs.

A program of ``torch.export`` holds pickles: of example inputs, and of tensors that are not plain. torch reads them so
that any object may come out, and so any code may run. Here it reads them as weights (``weights_only``), which make
tensors and containers and nothing else; a file that needs more is an error.
"""

from __future__ import annotations

import importlib
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_ERROR = "the file holds a pickled object that is no tensor: reading it could run code. Export the program without it"


class _Thread(threading.local):
    #: Whether this thread reads a program.
    is_reading = False


_THREAD = _Thread()
_LOCK = threading.Lock()
_READERS = ("torch.export.pt2_archive._package", "torch._export.serde.serialize")


@contextmanager
def without_unpickling(torch: Any) -> Iterator[None]:
    """What this thread reads makes only tensors and containers. It changes torch's own modules, once."""
    with _LOCK:
        _change_load(torch)
        for name in _READERS:
            _change_pickle(name)
    _THREAD.is_reading = True
    try:
        yield
    finally:
        _THREAD.is_reading = False


def _change_load(torch: Any) -> None:
    original = torch.load
    if getattr(original, "reads_weights", False):
        return

    def load(*arguments: Any, **keywords: Any) -> Any:
        if _THREAD.is_reading:
            keywords["weights_only"] = True
        return original(*arguments, **keywords)

    load.reads_weights = True  # type: ignore[attr-defined]
    torch.load = load


class _NoPickle:
    """The module ``pickle`` of a module of torch."""

    def __getattr__(self, name: str) -> Any:
        if _THREAD.is_reading and name in ("loads", "load", "Unpickler"):
            return _refuse
        return getattr(pickle, name)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise pickle.UnpicklingError(_ERROR)


def _change_pickle(module_name: str) -> None:
    try:
        module: Any = importlib.import_module(module_name)
    except ImportError:
        return
    if getattr(module, "pickle", None) is pickle:
        module.pickle = _NoPickle()
