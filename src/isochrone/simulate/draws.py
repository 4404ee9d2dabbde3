"""Random numbers, drawn in blocks: one at a time, numpy would cost more than the event it is for.

Every part of a run has a stream of its own, made from the run's seed and the part's name, so that two policies meet
the same requests, antagonists and failures whatever they do.
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
    """For code that wants a ``random.Random``: the gateway's own."""
    return Random(seed << 64 | _number(name))


def _number(name: str) -> int:
    """Of any name; ``hash`` would differ from process to process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def endless(draw: Callable[[int], Floats]) -> Iterator[float]:
    """One number after another out of blocks."""
    while True:
        yield from draw(BLOCK).tolist()
