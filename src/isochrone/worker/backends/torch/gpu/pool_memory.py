"""The memory of one pool of torch's allocator, from a snapshot of its segments. Pure.

What the process has reserved altogether also changes by other loads, and by unloads that give memory back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: Which pool a segment belongs to; torch 2.6 has it, and all later versions so far.
_POOL = "segment_pool_id"


def pool_bytes(segments: Iterable[Mapping[str, Any]], device: int, pool: Iterable[int]) -> int | None:
    """The bytes that a pool has taken of a device; None: the segments do not say whose they are."""
    wanted, total = tuple(pool), 0
    for segment in segments:
        if _POOL not in segment:
            return None
        if segment.get("device", device) == device and tuple(segment[_POOL]) == wanted:
            total += int(segment["total_size"])
    return total
