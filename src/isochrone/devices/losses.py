"""Whether this process has lost a device for good.

After an illegal access, every CUDA call of a process fails: only a new process can use the GPU. A server that has lost
one reports itself as not live, so that its supervisor restarts it.
"""

from __future__ import annotations

import structlog

log = structlog.get_logger(__name__)

_REASONS: list[str] = []


def record(device: str, reason: str) -> None:
    """From any thread; later ones say nothing new."""
    if not _REASONS:
        log.error("this process has lost a device and must be restarted", device=device, reason=reason)
    _REASONS.append(reason)


def is_lost() -> bool:
    return bool(_REASONS)


def forget() -> None:
    """For tests."""
    _REASONS.clear()
