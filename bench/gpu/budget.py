"""How a time limit is divided: between the programs, between the parts of one, and over its rounds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """Seconds: without ``least`` there is no figure, with ``full`` there are all."""

    least: float
    full: float


def share(left: float, needs: Sequence[Need]) -> float:
    """The seconds of the first of ``needs``: its least, and of what is left beyond that in proportion to the rest.

    It is asked before each one begins, so what one does not use is there for those behind it.
    """
    least, full = sum(each.least for each in needs), sum(each.full for each in needs)
    own = needs[0]
    if left <= least:
        return left * own.least / least
    if left >= full:
        return own.full + (left - full) * own.full / full
    return own.least + (left - least) * (own.full - own.least) / (full - least)


def rounds_within(left: float, wanted: int, round_seconds: float) -> int:
    """How many rounds fit; one at least."""
    return max(1, min(wanted, int(left / round_seconds))) if round_seconds > 0 else wanted


def scaled(left: float, planned: float, seconds: float, least: float, fixed: float = 0.0) -> float:
    """The seconds of one figure where all of them would take ``planned``: shorter ones rather than fewer.

    ``fixed``: the seconds of ``planned`` that do not become fewer with those of a figure.
    """
    if planned <= left:
        return seconds
    return max(min(least, seconds), seconds * (left - fixed) / (planned - fixed))
