"""Which files leave the cache to make room. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CachedFile:
    name: str
    size: int
    #: Seconds; only the order counts.
    last_used: float
    #: A process has it loaded, or is fetching it.
    in_use: bool


def to_evict(files: Iterable[CachedFile], needed: int, limit: int) -> list[CachedFile] | None:
    """The least recently used files that must go so that ``needed`` more bytes fit; None: they cannot fit.

    Files in use stay, whatever the limit.
    """
    files = list(files)
    excess = sum(file.size for file in files) + needed - limit
    chosen: list[CachedFile] = []
    for file in sorted((file for file in files if not file.in_use), key=lambda file: (file.last_used, file.name)):
        if excess <= 0:
            break
        chosen.append(file)
        excess -= file.size
    return chosen if excess <= 0 else None
