"""Random numbers, drawn in blocks: a numpy call per number would cost more than the simulated event that uses it.

Every part of a run has its own stream, derived from the run's seed and the part's name. Two policies therefore meet the
same requests, antagonists and failures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Floats = np.ndarray[Any, np.dtype[np.float64]]

BLOCK = 8192


def stream(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, _number(name)])


def plain_random(seed: int, name: str) -> Random:
    """A stream for code that takes a ``random.Random``, such as the gateway's."""
    return Random(seed << 64 | _number(name))


def _number(name: str) -> int:
    """A stable number for a name; ``hash`` would differ between processes."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def endless(draw: Callable[[int], Floats]) -> Iterator[float]:
    """Draw blocks and yield their numbers one by one."""
    while True:
        yield from draw(BLOCK).tolist()
