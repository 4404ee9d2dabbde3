"""How much of the traffic each endpoint gets, and the bounds inside which the learned policy may move it.

Shares are of the last requests: each request counts a little more than the one before, which is an exponential mean
without touching anybody's count but one. Above its ceiling an endpoint is given nothing by re-ranking; below its floor,
a safe one is given the next request, so that nobody is forgotten. The heuristic's own choices are never bounded. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from isochrone.gateway.policies.learned.features import View

#: Requests per endpoint over which shares are taken.
_WINDOW = 64
_RESCALE_AT = 1e9


class Shares:
    """``floor``, ``ceiling``: as multiples of an even share."""

    def __init__(self, floor: float, ceiling: float) -> None:
        self._floor_of_even = floor
        self._ceiling_of_even = ceiling
        self._views: list[View] = []
        self._unit = 1.0
        self._growth = 1.0
        self._total = 0.0
        self._floor_share = self._ceiling_share = 0.0

    def members(self, kept: Iterable[View], joined: Iterable[View]) -> None:
        """The members are these. Newcomers begin with an even share."""
        kept, joined = list(kept), list(joined)
        even = sum(view.share for view in kept) / len(kept) if kept else _WINDOW * self._unit
        for view in joined:
            view.share = even
        self._views = views = kept + joined
        self._total = sum(view.share for view in views)
        count = max(1, len(views))
        self._growth = 1 + 1 / (_WINDOW * count)
        self._floor_share = self._floor_of_even / count
        # Of two endpoints each may have everything; else the bound would forbid what the heuristic does.
        self._ceiling_share = min(1.0, self._ceiling_of_even / count)

    def sent(self, view: View) -> None:
        """A request goes to one."""
        self._unit = unit = self._unit * self._growth
        view.share += unit
        self._total += unit
        if unit > _RESCALE_AT:
            self._rescale()

    @property
    def floor(self) -> float:
        """To be compared with ``View.share``."""
        return self._floor_share * self._total

    @property
    def ceiling(self) -> float:
        """To be compared with ``View.share``."""
        return self._ceiling_share * self._total

    def _rescale(self) -> None:
        unit = self._unit
        for view in self._views:
            view.share /= unit
        self._total /= unit
        self._unit = 1.0
