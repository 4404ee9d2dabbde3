"""Errors that torch logs instead of raising them.

``torch.export.load`` logs an error of its reader, tries the format of older files, and then says "check the warnings
above", which a caller of the server does not see.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from isochrone.errors import IsochroneError
from isochrone.worker.backends.torch.error_text import error_line

_LOGGER = logging.getLogger("torch.export")
_ADVICE = "warnings above"


class _Thread(threading.local):
    #: What torch has logged on this thread.
    said = ""


_THREAD = _Thread()


def _keep(record: logging.LogRecord) -> bool:
    """A filter that lets everything pass. It runs on the thread that logs."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        _THREAD.said = error_line(error)
    return True


@contextmanager
def logged_errors_raised() -> Iterator[None]:
    """An error inside says, too, what torch has logged before. Errors that callers tell apart by their class keep it,
    with the logged text as a note."""
    _LOGGER.addFilter(_keep)  # one for all threads, which stays
    _THREAD.said = ""
    try:
        yield
    except (IsochroneError, MemoryError) as error:
        if _THREAD.said:
            error.add_note(_THREAD.said)
        raise
    except Exception as error:
        said = _THREAD.said
        if not said:
            raise
        raise RuntimeError(said if _ADVICE in str(error) else f"{said}; {error}") from error
