"""The choice of a replica for a request: tier, home of its sequence, policy, admission, circuit breakers. Pure.

Raises the error that the caller gets when no replica may take the request.
"""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.errors import DeadlineExceeded, Unavailable
from isochrone.gateway.fleet.replica_set import ReplicaSet
from isochrone.gateway.fleet.sequences import takes_sequences
from isochrone.gateway.placement.admission import Rejection
from isochrone.gateway.replicas import Endpoint, Replica
from isochrone.gateway.requests.dividing import names_division
from isochrone.gateway.requests.request import Request
from isochrone.gateway.traffic.affinity import SEQUENCE_MARK


class BreakersOpen(Unavailable):
    """The circuit breakers of all workers that were asked refuse the request."""


#: Requests of this class are not rejected by admission: workers let them overtake, so their queues say little.
_HIGHEST_PRIORITY = 1
#: Replicas asked when circuit breakers refuse.
_MOST_ASKED = 8
#: Requests in flight on a replica beyond which none of a waiting room follows.
_MOST_AT_ONCE = 64


def is_of_sequence(request: Request) -> bool:
    return request.demand.key.startswith(SEQUENCE_MARK)


def catch_up(request: Request, now: int) -> None:
    """What has changed since the request was placed counts for where it goes next."""
    served, replica_set = request.served, request.replica_set
    if served.outdated:
        served.rebuild(now)
    if replica_set.seen != replica_set.endpoint_changes.revision:
        replica_set.catch_up(now)


def place(request: Request, now: int) -> Replica:
    """The replica of a first attempt."""
    served, replica_set, demand = request.served, request.replica_set, request.demand
    if replica_set.seen != replica_set.endpoint_changes.revision:
        replica_set.catch_up(now)
    if request.subset is not None:
        replica_set = request.replica_set = served.within(replica_set, request.subset, now)
    if demand.key and is_of_sequence(request):
        return _at_home(request, now)
    if replica_set.tiers:
        replica_set = request.replica_set = served.in_tier(replica_set, request.deadline, now)
    replica = replica_set.balancer.choose(demand, now)
    if replica is None or (replica_set.balancer.panicking and _should_wait(request, replica_set, now)):
        raise served.nobody(replica_set)
    if demand.is_timed and demand.priority != _HIGHEST_PRIORITY:
        if demand.tokens is not None and replica_set.whole is not None:
            replica = _admitted_in_any_tier(request, replica_set.whole, replica, now)
        else:
            replica = _admitted(request, replica, now)
    limit = served.max_in_flight
    if replica.breaker is not None or (limit and replica.in_flight >= limit):
        replica = _beside_breakers(request, replica, now)
    return replica


def has_ready_worker(request: Request, now: int) -> bool:
    """Whether a worker is ready for a request that waits for one; raises if its version is served no more.

    Workers take no more requests that waited than they have answered: the whole room at once would be rejected.
    """
    served = request.served
    if request.version:
        replica_set = served.replica_set(request.version)
    else:
        replica_set = served.choose(request.head, request.asked_epoch)
    if replica_set.seen != replica_set.endpoint_changes.revision:
        replica_set.catch_up(now)
    if request.subset is not None:
        replica_set = served.within(replica_set, request.subset, now)
    in_sequence = is_of_sequence(request)
    most = min(served.max_in_flight or _MOST_AT_ONCE, _MOST_AT_ONCE)
    return any(
        is_ready(replica.endpoint, now)
        and replica.in_flight < most
        # It did not take the request before: it has answered since.
        and (replica not in request.tried or replica.endpoint.heard_at > request.waits_since)
        and (not in_sequence or takes_sequences(replica, replica_set))
        for replica in replica_set.balancer.eligible
    )


def _should_wait(request: Request, replica_set: ReplicaSet, now: int) -> bool:
    """Whether a request waits for a worker instead of going to one that is not healthy: no other is there."""
    if not request.served.rules.waiting_room.max_requests or not request.can_wait:
        return False
    return not any(is_ready(replica.endpoint, now) for replica in replica_set.balancer.eligible)


def is_ready(endpoint: Endpoint, now: int) -> bool:
    """In panic, others are eligible, too."""
    return endpoint.healthy and endpoint.ejected_until <= now


def has_untried(request: Request, now: int) -> bool:
    """Whether there is a replica that the request was not sent to yet, in its tier or in any other."""
    catch_up(request, now)
    tried, whole = request.tried, request.replica_set.whole
    return any(
        replica not in tried
        for replica_set in (request.replica_set, whole)
        if replica_set is not None
        for replica in replica_set.balancer.eligible
    )


def leave_exhausted_tier(request: Request) -> None:
    """If the request was sent to every replica of its tier, any other tier will do."""
    replica_set = request.replica_set
    if replica_set.whole is not None and all(each in request.tried for each in replica_set.balancer.eligible):
        request.replica_set = replica_set.whole


def another(request: Request, now: int) -> Replica | None:
    """A replica that the request was not sent to yet and that may take it; None: there is none in its tier."""
    catch_up(request, now)
    replica = request.replica_set.balancer.choose(request.demand.avoiding(request.tried), now)
    if replica is None or replica in request.tried or breaker_refusal(request, replica, now):
        return None
    return replica


def any_untried(request: Request, now: int) -> Replica | None:
    """The first replica that the request was not sent to yet and that may take it, where its policy knows of none."""
    for replica in request.replica_set.balancer.eligible:
        if replica not in request.tried and not breaker_refusal(request, replica, now):
            return replica
    return None


def beside(request: Request, occupied: tuple[Replica, ...], now: int) -> Replica | None:
    """``another`` for a suspect, which must not go to replicas whose endpoints have one."""
    catch_up(request, now)
    avoid = (*request.tried, *occupied)
    balancer = request.replica_set.balancer
    replica = balancer.choose(request.demand.avoiding(avoid), now)
    if replica is None or replica in avoid:
        # A policy that goes by a key may insist on its own choice.
        replica = next((each for each in balancer.eligible if each not in avoid), None)
    return None if replica is None or breaker_refusal(request, replica, now) else replica


def breaker_refusal(request: Request, replica: Replica, now: int) -> str:
    limit = request.served.max_in_flight
    if limit and replica.in_flight >= limit:
        return f"circuit breaker: max_in_flight ({limit})"
    return replica.breaker.refusal(now) if replica.breaker is not None else ""


def _admitted(request: Request, replica: Replica, now: int, *, may_move: bool = True) -> Replica:
    if request.served.divisions is not None and names_division(request):
        # How long it takes is known of that division alone, or not at all: the worker rejects it if it is late.
        return replica
    balancer, admission = request.replica_set.balancer, request.served.admission
    eligible, demand = balancer.eligible if may_move else (), request.demand
    if not may_move or not balancer.can_lend:
        verdict = admission.check(eligible, replica, demand, now)
    else:
        verdict = admission.check(eligible, replica, demand, now, is_final=False)
        if isinstance(verdict, Rejection):
            # Standby workers before a rejection, if they would be in time: they have loaded everything and do nothing.
            verdict = admission.check(balancer.spare, replica, demand, now, is_final=False)
            if isinstance(verdict, Rejection):
                verdict = admission.check(eligible, replica, demand, now)
            else:
                balancer.lend(now)
    if isinstance(verdict, Rejection):
        raise _too_late(request, verdict)
    return verdict


def _admitted_in_any_tier(request: Request, whole: ReplicaSet, replica: Replica, now: int) -> Replica:
    """``_admitted`` of a request with deadlines of tokens, which its tier was not chosen by.

    If all of its tier are late, the other tiers are asked, nearest first; if these are late, too, its own decides.
    """
    served, demand, own = request.served, request.demand, request.replica_set
    rejections: list[Rejection] = []
    for part in (own, *(part for part in whole.tiers if part is not own)):
        chosen = replica if part is own else part.balancer.choose(demand, now)
        if chosen is None:
            continue
        due = demand.sooner_by(served.tiers.way_ns[whole.tiers.index(part)])
        verdict = served.admission.check(part.balancer.eligible, chosen, due, now, is_final=False)
        if not isinstance(verdict, Rejection):
            request.replica_set = part
            nearest = next((each for each in whole.tiers if each.balancer.eligible), own)
            if own is nearest and part is not own:
                served.tiers.spilled += 1
            return verdict
        rejections.append(verdict)
    due = demand.sooner_by(served.tiers.way_ns[whole.tiers.index(own)])
    verdict = served.admission.check(own.balancer.eligible, replica, due, now)
    if isinstance(verdict, Rejection):
        raise _too_late(request, min(rejections, key=lambda each: each.missed_by_ns))
    return verdict


def _too_late(request: Request, rejection: Rejection) -> DeadlineExceeded:
    error = DeadlineExceeded(f"Request timeout expired: model '{request.served.name}': {rejection.message}")
    error.expected_ns, error.missed_by_ns = rejection.expected_ns, rejection.missed_by_ns
    return error


def _at_home(request: Request, now: int) -> Replica:
    """A request of a sequence goes where the sequence lives, or nowhere."""
    served = request.served
    request.replica_set = _tier_of_sequences(request.replica_set)
    home = served.sequences.home(request.demand, request.replica_set)
    if home is None or (request.subset is not None and home.replica.endpoint.address not in request.subset):
        raise served.nobody(request.replica_set)
    request.replica_set, replica = home.replica_set, home.replica
    if request.demand.priority != _HIGHEST_PRIORITY:
        replica = _admitted(request, replica, now, may_move=False)
    if reason := breaker_refusal(request, replica, now):
        raise _refused_by_breakers(request, {replica: reason})
    return replica


def _tier_of_sequences(replica_set: ReplicaSet) -> ReplicaSet:
    """The nearest tier that serves the version: every gateway finds the same, whatever load it sees."""
    for part in replica_set.tiers:
        replicas = part.replicas.values()
        if any(replica.endpoint.healthy and not part.balancer.refusal(replica) for replica in replicas):
            return part
    return replica_set


def _beside_breakers(request: Request, replica: Replica, now: int) -> Replica:
    """A replica whose circuit breaker lets one more request through."""
    refused: dict[Replica, str] = {}
    balancer = request.replica_set.balancer
    for _ in range(min(_MOST_ASKED, len(balancer.eligible))):
        reason = breaker_refusal(request, replica, now)
        if not reason:
            return replica
        refused[replica] = reason
        other = balancer.choose(request.demand.avoiding(tuple(refused)), now)
        if other is None or other in refused:
            break
        replica = other
    raise _refused_by_breakers(request, refused)


def _refused_by_breakers(request: Request, refused: Mapping[Replica, str]) -> BreakersOpen:
    reasons = "; ".join(f"{one.endpoint.address}: {reason}" for one, reason in refused.items())
    return BreakersOpen(f"no worker may take a request for model '{request.served.name}' now ({reasons})")
