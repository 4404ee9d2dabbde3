"""Time limits of a gateway's link to the store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkRules:
    """All in seconds."""

    lease: float = 5.0
    #: A switch that is held longer is cancelled by the first gateway that notices.
    longest_hold: float = 1.0
    #: Held requests are rejected after this long, if the cancellation could not be written either.
    reject_held: float = 3.0
    #: For finding a worker that serves what a switch or an epoch brings.
    discovery: float = 2.0
    #: For one round of asking every worker. A worker that hangs is not waited for: it gets no request for a version
    #: that it is not known to serve.
    discovery_round: float = 0.5
    #: A worker whose record vanished, but which still answers, is kept this long: only the store may have lost it.
    linger: float = 10.0
