"""How attempts are booked: in-flight counts, latencies, failures, circuit breakers, policies. Pure.

Every attempt that is begun is ended exactly once: by ``end`` (it is evidence about its replica) or ``drop`` (it is
not).
"""

from __future__ import annotations

from isochrone.clock import SECOND
from isochrone.gateway.replicas import Replica
from isochrone.gateway.requests.dividing import begin_division, end_division
from isochrone.gateway.requests.request import Attempt, Request
from isochrone.gateway.resilience.breaker import Breaker
from isochrone.gateway.resilience.retry_budget import Kind

#: A replica's load report is asked for this often: asking every time would make every answer's head a new one, to be
#: parsed.
ASK_NS = 2_000_000
#: The same for an endpoint, whatever its models: with fifty of them, every request would ask. A model with few requests
#: asks after this time, whatever the others did.
ASK_ENDPOINT_NS = 500_000
ASK_ANYWAY_NS = 20_000_000
#: A request that no other replica can take stays with an endpoint that fails its health checks for so long.
PATIENCE_NS = 2 * SECOND
#: Weight of one rejection in the error rate of a replica that reports no load.
_GAIN = 1 / 16
_STREAM = Kind.STREAM


def begin(request: Request, replica: Replica, now: int) -> Attempt:
    """Book a new attempt."""
    replica_set = request.replica_set
    attempt = request.attempt_type(request, replica_set, replica, now)
    if now - replica.asked_at > ASK_NS and request.can_ask:
        endpoint = replica.endpoint
        if now - endpoint.asked_at > ASK_ENDPOINT_NS or now - replica.asked_at > ASK_ANYWAY_NS:
            attempt.asks = True
            replica.asked_at = endpoint.asked_at = now
    balancer = replica_set.balancer
    if len(balancer.eligible) > 1:
        # A policy with one replica has nothing to decide by what it learns.
        balancer.policy.sent(replica, now)
    if replica.breaker is not None:
        attempt.breaker = replica.breaker
        attempt.breaker_round = replica.breaker.sent()
    if balancer.panicking and not replica.endpoint.healthy:
        be_patient(request, now)
    divisions = request.served.divisions
    if divisions is not None:
        begin_division(attempt, divisions, now)
    request.attempts.append(attempt)
    request.tried = (*request.tried, replica) if request.tried else (replica,)
    return attempt


def be_patient(request: Request, now: int) -> None:
    """A request is on an endpoint that fails its health checks: look again later."""
    request.patience_until = now + PATIENCE_NS
    request.due_at = min(request.deadline, request.hedge_at, request.patience_until)


def end(attempt: Attempt, now: int, failed: bool, *, answered: bool = True) -> None:
    """Book an attempt that is evidence. ``answered``: an answer came: a failure is the model's, not the endpoint's."""
    request, replica = attempt.request, attempt.replica
    if request.shadow is not None:
        drop(attempt, now)
        return
    attempt.over = True
    if attempt.division is not None:
        end_division(attempt, now, answered=not failed)
    latency = now - attempt.sent_at
    if request.kind is _STREAM and not failed:
        # How long a stream lasts is its caller's choice, not a latency; how long its first answer takes is one.
        latency = attempt.streaming_at - attempt.sent_at if attempt.streaming_at else int(replica.latency_ns)
    replica.ended(attempt.load, latency, failed, now)
    balancer = attempt.replica_set.balancer
    if len(balancer.eligible) > 1:
        balancer.policy.ended(replica, latency, failed, now)
    if failed:
        request.served.failed(replica, now, lost=not answered)
    else:
        replica.well += 1
        replica.well_ns += latency
    breaker: Breaker | None = replica.breaker
    if breaker is not None and (attempt.breaker is None or attempt.breaker is breaker):
        # One that was sent under another circuit breaker is no evidence: that one's rounds are not comparable.
        breaker.ended(attempt.breaker_round, failed, now)


def drop(attempt: Attempt, now: int, *, unneeded: bool = False) -> None:
    """Book an attempt that is no evidence about its replica. ``unneeded``: nor about the policy that chose it."""
    attempt.over = True
    replica = attempt.replica
    if attempt.division is not None:
        end_division(attempt, now, answered=False)
    unneeded = unneeded or attempt.request.shadow is not None
    attempt.replica_set.balancer.dropped(replica, attempt.sent_at, now, unneeded=unneeded)
    breaker: Breaker | None = replica.breaker
    if breaker is not None and (attempt.breaker is None or attempt.breaker is breaker):
        breaker.dropped(attempt.breaker_round)


def rejected(attempt: Attempt, now: int) -> None:
    """Book a rejection: it says neither how fast the replica is nor that it is broken."""
    drop(attempt, now)
    replica = attempt.replica
    if not replica.endpoint.reports:
        # Its load is not reported, so a replica that rejects quickly would look idle and get ever more requests.
        replica.error_rate += (1.0 - replica.error_rate) * _GAIN
