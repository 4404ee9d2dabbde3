"""Which devices this process has lost for good.

After an illegal access, every CUDA call of a process fails: only a new process can use the GPU. A server that has lost
one reports itself neither live nor ready, so that its supervisor restarts it. Until then it answers what it can, so
nothing of a lost device may be freed: torch records an event where pinned memory is freed, which fails, and since that
happens in a destructor, it ends the process.
"""

from __future__ import annotations

import ctypes

import structlog

log = structlog.get_logger(__name__)

#: Device → the error with which it was lost.
_REASONS: dict[str, str] = {}


def record(device: str, reason: str) -> None:
    """From any thread. Every later call of CUDA fails as well: the first error of a device is the one to read."""
    if device not in _REASONS:
        _REASONS[device] = reason
        log.error("this process has lost a device and must be restarted", device=device, reason=reason)


def is_lost(device: str | None = None) -> bool:
    """Whether a device is lost; None: whether any is."""
    return bool(_REASONS) if device is None else device in _REASONS


def keep(*objects: object) -> None:
    """Keeps objects with memory of a lost device for as long as the process lives."""
    # One reference too many: the interpreter drops others when it ends.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(objects))


def forget() -> None:
    """For tests."""
    _REASONS.clear()
