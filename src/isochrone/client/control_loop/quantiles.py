"""A quantile of a few figures."""

from __future__ import annotations

import math
from collections.abc import Collection


def quantile_of(figures: Collection[int], share: float) -> int:
    """The smallest figure that at least ``share`` of them do not exceed."""
    ordered = sorted(figures)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]
