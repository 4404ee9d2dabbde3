"""How many independent requests a run of correlated ones is worth.

Neighbours in time share a queue, a pause or a slow batch: a thousand slow requests of one pause are one event. If the
slow ones gather in parts of the run more than independent ones would, the count is divided by the ratio of the two
variances (the design effect of cluster sampling).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_BLOCKS = 32
_FEWEST_BLOCKS = 8
_FEWEST_PER_BLOCK = 4
#: Independent requests exceed the critical ratio in 1 % of runs: for them, intervals stay exact.
_CRITICAL_DEVIATIONS = 2.326


def effective_count(flags: NDArray[np.bool_]) -> int:
    """The count of independent requests that estimate the share of ``flags`` as well. ``flags``: in order of time."""
    count = len(flags)
    blocks = min(_BLOCKS, count // _FEWEST_PER_BLOCK)
    share = float(flags.mean()) if count else 0.0
    if blocks < _FEWEST_BLOCKS or not 0 < share < 1:
        return count
    edges = np.linspace(0, count, blocks + 1).astype(np.int64)
    sizes = np.diff(edges)
    shares = np.add.reduceat(flags.astype(np.int64), edges[:-1]) / sizes
    ratio = float((sizes * (shares - share) ** 2).sum()) / ((blocks - 1) * share * (1 - share))
    return count if ratio <= _critical(blocks - 1) else max(1, int(count / ratio))


def _critical(degrees: int) -> float:
    """The 99th percentile of chi squared over its degrees of freedom, by Wilson and Hilferty."""
    spread = 2 / (9 * degrees)
    return (1 - spread + _CRITICAL_DEVIATIONS * math.sqrt(spread)) ** 3
