"""Error budgets of one model: how much is used, how fast it burns, and when it is spent. Pure.

With an objective of 99 %, one request in a hundred may be bad. The budget is that share of the requests of the last
24 hours, as far as the history reaches. A burn rate of 1 spends exactly what the objective allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from isochrone.control.figures.totals import Totals

#: Minutes of the windows, the shortest first. The last is that of the budget.
WINDOWS: Final = (5, 60, 6 * 60, 24 * 60)
#: The window whose rates tell when the budget is spent: the shortest says little, a longer one says it late.
_TREND: Final = 60

#: States of a budget.
NO_REQUESTS, NOT_COUNTED, KEPT, BURNING, SPENT = "no requests", "not counted", "kept", "burning", "spent"


@dataclass(frozen=True, slots=True)
class Window:
    """The requests of one window."""

    minutes: int
    totals: Totals
    #: Share of good requests; None: there were none.
    ratio: float | None
    #: Bad requests as a multiple of those that the objective allows.
    burn: float


@dataclass(frozen=True, slots=True)
class Budget:
    """The error budget of one model."""

    objective: float
    windows: tuple[Window, ...]
    #: Share of the budget that is used, above 1 if more is; and what is left of it, at least 0.
    used: float
    left: float
    #: Seconds until it is spent at the rates of the last hour; None: never.
    spent_in_s: float | None
    #: ``NO_REQUESTS``, ``NOT_COUNTED`` (nobody knows whether there were any), ``KEPT``, ``BURNING`` (the two shortest
    #: windows burn more than is allowed) or ``SPENT``.
    state: str


def budget(objective: float, windows: Mapping[int, Totals], covered_s: float, *, is_counted: bool = True) -> Budget:
    """``windows``: by minutes, of ``WINDOWS``. ``covered_s``: how far the history reaches back. ``is_counted`` False:
    the fleet has more models than are counted, and this one may be among the others."""
    seen = tuple(_window(minutes, windows.get(minutes, Totals()), objective) for minutes in WINDOWS)
    whole = seen[-1]
    spent_in_s = _spent_in(objective, whole.totals, windows.get(_TREND, Totals()), min(covered_s, _TREND * 60.0))
    state = SPENT if spent_in_s == 0.0 else _state(seen)
    if state == NO_REQUESTS and not is_counted:
        state = NOT_COUNTED
    return Budget(objective, seen, whole.burn, max(0.0, 1.0 - whole.burn), spent_in_s, state)


def _window(minutes: int, totals: Totals, objective: float) -> Window:
    if not totals.requests:
        return Window(minutes, totals, None, 0.0)
    bad = totals.bad / totals.requests
    return Window(minutes, totals, totals.good / totals.requests, bad / (1.0 - objective))


def _state(windows: tuple[Window, ...]) -> str:
    if not windows[-1].totals.requests:
        return NO_REQUESTS
    return BURNING if windows[0].burn > 1.0 and windows[1].burn > 1.0 else KEPT


def _spent_in(objective: float, whole: Totals, trend: Totals, seconds: float) -> float | None:
    """Requests that may still be bad, over how fast they become fewer."""
    left = (1.0 - objective) * whole.requests - whole.bad
    if whole.requests and left <= 0.0:
        return 0.0
    excess = trend.bad - (1.0 - objective) * trend.requests
    return left * seconds / excess if excess > 0.0 and seconds > 0.0 else None
