"""How long a request may wait for the core before the edge is the better hope. Pure."""

from __future__ import annotations

from typing import Final

from isochrone.clock import MILLISECOND

#: Times of the estimate. It is a late one already: few requests take twice as long on a link that works.
_TIMES: Final = 2
#: Of the time until the deadline: the edge needs time, too, and the estimate may be of a link that is useless already.
_SHARE: Final = 0.5
#: A short pause of either side is no sign.
_LEAST_NS: Final = 100 * MILLISECOND


def patience(late_ns: float, left_ns: int) -> int:
    """ns from the start of a run. ``late_ns``: its division's late estimate then; ``left_ns``: until the deadline."""
    return max(_LEAST_NS, int(min(_TIMES * late_ns, _SHARE * left_ns)))
