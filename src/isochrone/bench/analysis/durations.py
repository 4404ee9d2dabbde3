"""Durations as people read them: three digits and a unit."""

from __future__ import annotations

import math

from isochrone.clock import MICROSECOND, MILLISECOND, SECOND


def shown_ns(duration_ns: float) -> str:
    """``1.23 ms``; ``∞`` for a bound that is not known."""
    if not math.isfinite(duration_ns):
        return "∞"
    size = abs(duration_ns)
    for unit, name in ((SECOND, "s"), (MILLISECOND, "ms"), (MICROSECOND, "µs")):
        # From the value on that three digits round up to one of this unit.
        if size >= unit * 0.9995:
            return f"{_digits(duration_ns / unit)} {name}"
    return f"{duration_ns:.0f} ns"


def _digits(value: float) -> str:
    size = abs(value)
    return f"{value:,.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
