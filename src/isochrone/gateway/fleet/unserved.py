"""Whether anything can take a request for a replica set, and the sentence for its caller where nothing can. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.errors import NoWorkerReady
from isochrone.gateway.fleet.member import Member
from isochrone.gateway.fleet.replica_set import ReplicaSet
from isochrone.gateway.placement.balancer import STANDING_BY

#: Workers whose state the sentence has.
_MOST_STATES = 8


def has_server(replica_set: ReplicaSet, now: int) -> bool:
    """Whether a healthy replica can serve it: where outlier ejection leaves too few, it is ignored."""
    balancer = replica_set.balancer
    for replica in balancer.replicas:
        endpoint = replica.endpoint
        is_well = endpoint.healthy and (endpoint.ejected_until <= now or balancer.rules.panic_threshold > 0)
        if is_well and balancer.refusal(replica) in ("", STANDING_BY):
            return True
    return False


def nobody(model: str, replica_set: ReplicaSet, members: Mapping[str, Member], *, is_led: bool) -> NoWorkerReady:
    """Why a request for a replica set of this model can go nowhere."""
    if not members and is_led:
        return NoWorkerReady("no worker of the fleet is registered, or all are drained; see isochrone status")
    if not members:
        return NoWorkerReady("the gateway has no upstream; name one with --upstream host:port")
    states = [
        f"{one.endpoint.address}: {replica_set.balancer.refusal(one) or one.endpoint.handle.fault or 'unhealthy'}"
        for one in replica_set.balancer.replicas
    ]
    states += [
        f"{address}: {member.fault or 'it has not answered yet'}"
        for address, member in members.items()
        if not member.endpoint.healthy and address not in replica_set.replicas
    ]
    reason = "; ".join(states[:_MOST_STATES]) or "none serves what is asked for"
    return NoWorkerReady(f"no worker can take a request for model '{model}' now ({reason})")
