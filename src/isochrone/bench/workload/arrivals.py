"""Arrival processes: the instants at which an open loop sends, in ns since its start, in blocks.

The same seed gives the same instants. Instants do not depend on the server, nor on the number of generator processes:
each process computes all of them and takes every n-th.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isochrone.clock import SECOND
from isochrone.errors import ConfigError

Instants = NDArray[np.int64]

#: Instants of one block: a run of hours does not hold all of its instants.
BLOCK = 8192
_EXPECTED = "seconds since the start of the trace, one number a line, in ascending order"


def constant(rate: float, seconds: float) -> Iterator[Instants]:
    """Equal intervals of 1 / rate; the first request at 0."""
    count = int(np.ceil(rate * seconds - 1e-9))
    for first in range(0, count, BLOCK):
        numbers = np.arange(first, min(first + BLOCK, count), dtype=np.float64)
        yield _nanoseconds(numbers / rate)


def poisson(rate: float, seconds: float, seed: int) -> Iterator[Instants]:
    """Independent, exponentially distributed intervals of mean 1 / rate."""
    for points in _poisson_points(rate, seconds, seed):
        yield _nanoseconds(points)


def bursts(rate: float, on_seconds: float, off_seconds: float, seconds: float, seed: int) -> Iterator[Instants]:
    """Poisson arrivals during ``on_seconds``, none during ``off_seconds``, in turn. ``rate`` is the mean over both."""
    period = on_seconds + off_seconds
    whole, rest = divmod(seconds, period)
    # The process runs on a time scale of its own that stands still while the load is off.
    on_time = whole * on_seconds + min(rest, on_seconds)
    for points in _poisson_points(rate * period / on_seconds, on_time, seed):
        yield _nanoseconds(points + np.floor(points / on_seconds) * off_seconds)


def recorded(offsets: Iterable[float], seconds: float) -> Iterator[Instants]:
    """The offsets of a trace that are before ``seconds``. The trace is not repeated."""
    points = np.asarray(list(offsets), dtype=np.float64)
    points = points[points < seconds]
    for first in range(0, len(points), BLOCK):
        yield _nanoseconds(points[first : first + BLOCK])


def shared(blocks: Iterable[Instants], index: int, count: int) -> Iterator[Instants]:
    """Every ``count``-th instant, from number ``index`` on: the part of one of ``count`` processes."""
    position = 0
    for block in blocks:
        yield block[(index - position) % count :: count]
        position += len(block)


def read_trace(path: Path) -> tuple[float, ...]:
    """The offsets in a file of numbers. Empty lines and lines that begin with # are skipped."""
    offsets: list[float] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                text = line.strip()
                if not text or text.startswith("#"):
                    continue
                where = f"{path}:{number}"
                try:
                    offset = float(text)
                except ValueError:
                    raise ConfigError(where, "offset", _EXPECTED, repr(text[:60])) from None
                if not 0 <= offset < np.inf or (offsets and offset < offsets[-1]):
                    raise ConfigError(where, "offset", _EXPECTED, text[:60])
                offsets.append(offset)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "bytes that are not text"
        raise ConfigError(str(path), "file", _EXPECTED, reason) from None
    if not offsets:
        raise ConfigError(str(path), "file", _EXPECTED, "no number")
    return tuple(offsets)


def _poisson_points(rate: float, seconds: float, seed: int) -> Iterator[NDArray[np.float64]]:
    random = np.random.default_rng([seed, 0])
    last = 0.0
    while True:
        points = last + np.cumsum(random.exponential(1 / rate, BLOCK))
        inside = int(np.searchsorted(points, seconds, side="left"))
        if inside:
            yield points[:inside]
        if inside < BLOCK:
            return
        last = float(points[-1])


def _nanoseconds(seconds: NDArray[np.float64]) -> Instants:
    return np.rint(seconds * SECOND).astype(np.int64)
