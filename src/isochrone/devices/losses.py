"""Which devices this process has lost for good.

After an illegal access, every CUDA call of a process fails: only a new process can use the GPU. A server that has lost
one reports itself neither live nor ready, so that its supervisor restarts it.
"""

from __future__ import annotations

import structlog

log = structlog.get_logger(__name__)

#: Device → the error with which it was lost.
_REASONS: dict[str, str] = {}


def record(device: str, reason: str) -> None:
    """From any thread. Every later call of CUDA fails as well: the first error of a device is the one to read."""
    if device not in _REASONS:
        _REASONS[device] = reason
        log.error("this process has lost a device and must be restarted", device=device, reason=reason)


def is_lost() -> bool:
    return bool(_REASONS)


def forget() -> None:
    """For tests."""
    _REASONS.clear()
