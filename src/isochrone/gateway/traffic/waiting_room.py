"""Whether requests of a model wait while no worker is ready for it, as in a pool that was scaled to zero.

Requests of other models are rejected at once: a caller that is answered immediately can do something else.
"""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.clock import SECOND
from isochrone.settings.ranges import Count, Duration


@dataclass(frozen=True, slots=True)
class WaitingRoomRules:
    """Off unless ``max_requests`` is set."""

    #: Requests of the model that may wait in one gateway process; 0: none waits.
    max_requests: Count = 0
    #: The longest wait. A request with an earlier deadline waits until that.
    max_wait_ns: Duration = 30 * SECOND
