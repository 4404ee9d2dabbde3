"""Hashes that are the same on every gateway: of keys, of addresses, and of many points per address.

Python's own ``hash`` differs between processes and must never be used for affinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15


def of_bytes(value: bytes) -> int:
    """A 64-bit hash of a key."""
    return int.from_bytes(blake2b(value, digest_size=8).digest(), "little")


def of_address(address: str, purpose: bytes) -> int:
    """A 64-bit hash of an address, different for each purpose."""
    return int.from_bytes(blake2b(address.encode(), digest_size=8, person=purpose).digest(), "little")


def points(seeds: Sequence[int], count: int) -> NDArray[np.uint64]:
    """``count`` points on the ring per seed, one row each: splitmix64 (Steele, Lea and Flood, OOPSLA 2014) over a
    counter."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    state: NDArray[np.uint64] = np.array(seeds, dtype=np.uint64)[:, None] + steps
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state
