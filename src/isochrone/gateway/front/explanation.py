"""The placement of a request in words, for ``x-isochrone-explain``."""

from __future__ import annotations

import json
from typing import Any

from isochrone.clock import NEVER
from isochrone.gateway.requests.request import Attempt, Request
from isochrone.gateway.traffic.divisions import Choice
from isochrone.protocol.headers.divisions import DIVISION_KINDS

#: Asks for the explanation, and carries it.
EXPLAIN_HEADER, PLACEMENT_HEADER = b"x-isochrone-explain", b"x-isochrone-placement"
#: Candidates that an explanation lists: it has to fit a header field.
_MOST_SHOWN = 16


def explanation(request: Request, attempt: Attempt, now: int) -> bytes:
    """The candidates, and why this one, as JSON."""
    replica_set = attempt.replica_set
    balancer = replica_set.balancer
    placement: dict[str, Any] = {
        "model": request.served.name,
        "version": replica_set.version,
        "policy": balancer.policy.name,
        "worker": attempt.replica.endpoint.address,
        "attempts": [replica.endpoint.address for replica in request.tried],
        "time_left_ms": None if request.deadline == NEVER else round((request.deadline - now) / 1e6, 3),
        "panicking": balancer.panicking,
        "workers": len(balancer.replicas),
        "candidates": _shown(balancer.explain(request.demand, attempt.replica, now)),
    }
    if attempt.division is not None:
        placement["division"] = _division(attempt.division)
    return json.dumps(placement).encode("ascii")


def _division(choice: Choice) -> dict[str, Any]:
    """How the attempt ran, by the figures and the time left when it was sent."""
    return {
        "chosen": choice.division or None,
        "reason": choice.reason,
        "time_left_ms": None if choice.time_left_ns == NEVER else round(choice.time_left_ns / 1e6, 3),
        "expected_ms": {
            kind: round(expected / 1e6, 3)
            for kind, expected in zip(DIVISION_KINDS, choice.expected_ns, strict=False)
            if expected
        },
    }


def _shown(candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The replica that was chosen, and the first few others."""
    chosen = [row for row in candidates if row["chosen"]]
    return (chosen + [row for row in candidates if not row["chosen"]])[:_MOST_SHOWN]
