"""Each endpoint's recent share of the traffic, and its bounds under the learned policy. Pure.

Each request counts a little more than the one before: an exponential mean that updates only one count per request. An
endpoint above its ceiling gets no request by re-ranking. A safe endpoint below its floor gets the next request, so that
its figures stay current. Prequal's own choices are never bounded.
"""

from __future__ import annotations

from collections.abc import Iterable

from isochrone.gateway.policies.learned.features import View

#: Requests per endpoint over which shares are computed.
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

    def views_changed(self, kept: Iterable[View], joined: Iterable[View]) -> None:
        """Replace the views. New ones start with an even share."""
        kept, joined = list(kept), list(joined)
        even = sum(view.share for view in kept) / len(kept) if kept else _WINDOW * self._unit
        for view in joined:
            view.share = even
        self._views = views = kept + joined
        self._total = sum(view.share for view in views)
        count = max(1, len(views))
        self._growth = 1 + 1 / (_WINDOW * count)
        self._floor_share = self._floor_of_even / count
        # In a fleet of a few endpoints each may get all requests: the bound must not forbid what Prequal does.
        self._ceiling_share = min(1.0, self._ceiling_of_even / count)

    def sent(self, view: View) -> None:
        """Count a request to one endpoint."""
        self._unit = unit = self._unit * self._growth
        view.share += unit
        self._total += unit
        if unit > _RESCALE_AT:
            self._rescale()

    @property
    def floor(self) -> float:
        """In the unit of ``View.share``."""
        return self._floor_share * self._total

    @property
    def ceiling(self) -> float:
        """In the unit of ``View.share``."""
        return self._ceiling_share * self._total

    def _rescale(self) -> None:
        unit = self._unit
        for view in self._views:
            view.share /= unit
        self._total /= unit
        self._unit = 1.0
