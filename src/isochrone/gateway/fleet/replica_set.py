"""The way to one version of one model: who serves it, and what is stamped on requests that go there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from isochrone.gateway.fleet.endpoint_changes import EndpointChanges
from isochrone.gateway.latencies.version_durations import VersionDurations
from isochrone.gateway.placement.balancer import Balancer
from isochrone.gateway.replicas import Replica
from isochrone.protocol.grpc.routing_fields import version_field
from isochrone.protocol.headers.stages import STAGES_HEADER
from isochrone.wire.http2.hpack import encode_literal

if TYPE_CHECKING:
    from isochrone.gateway.fleet.member import Member


class ReplicaSet:
    """One version of one model, and who serves it."""

    __slots__ = (
        "_model",
        "balancer",
        "candidates",
        "candidates_until",
        "durations",
        "endpoint_changes",
        "replicas",
        "seen",
        "stage_field",
        "stages",
        "stamp",
        "subsets",
        "tag",
        "tiers",
        "version",
        "whole",
    )

    def __init__(
        self,
        model: str,
        version: str,
        balancer: Balancer,
        endpoint_changes: EndpointChanges,
        stages: bytes = b"",
        durations: VersionDurations | None = None,
    ) -> None:
        self._model = model
        #: Stamped on every request that goes this way; "": nothing is stamped.
        self.version = version
        #: The same as a field of a gRPC message.
        self.stamp = version_field(version) if version else b""
        #: The versions of an ensemble's stages, told to the worker with every request; and that as a header field
        #: (RFC 7541 §6.2.2, without indexing) that can follow any encoded block. Empty: nothing is told.
        self.stages = stages
        self.stage_field = encode_literal(STAGES_HEADER, stages) if stages else b""
        #: What of a request's head differs from replica set to replica set.
        self.tag = version, stages
        self.balancer = balancer
        #: Of its requests; versions without series of their own on the metrics page share one.
        self.durations = durations or VersionDurations("")
        self.replicas: dict[str, Replica] = {}
        #: What the flight recorder notes of the replicas, and until when requests share it.
        self.candidates: tuple[Any, ...] = ()
        self.candidates_until = 0
        #: Its parts by tier, nearest first, where tiers matter; and of a part, the whole.
        self.tiers: tuple[ReplicaSet, ...] = ()
        self.whole: ReplicaSet | None = None
        #: Parts that callers restrict themselves to, by the addresses of their endpoints, and the replicas of the whole
        #: that each was made from.
        self.subsets: dict[frozenset[str], tuple[Mapping[str, Replica], ReplicaSet]] = {}
        #: The fleet's, and the last revision of them that was taken: whoever places a request compares them first.
        self.endpoint_changes = endpoint_changes
        self.seen = endpoint_changes.revision

    def update(self, members: Iterable[Member], now: int) -> None:
        """These members serve it; replicas that stay keep what is known of them."""
        now = max(now, self.endpoint_changes.looked_at)
        model, version, known = self._model, self.version, self.replicas
        replicas: dict[str, Replica] = {}
        for member in members:
            endpoint = member.endpoint
            replica = known.get(endpoint.address)
            if replica is None or replica.endpoint is not endpoint:
                replica = Replica(endpoint, model=model)
                self.endpoint_changes.replicas_made += 1
            served = member.serves.get(model) if member.serves is not None else None
            replica.digest = served.get(version, "") if served is not None else ""
            replicas[endpoint.address] = replica
        if replicas == known:
            self.balancer.refresh(now)
        else:
            self.replicas = replicas
            self.balancer.update(list(replicas.values()), now)
        for part in self.tiers:
            # The same replicas: what is known of them is known in every part.
            part.replicas = replicas
            part.balancer.update(list(replicas.values()), now)

    def catch_up(self, now: int) -> None:
        """Take what has changed about endpoints since the last call: states, load reports.

        ``now`` may be when a request arrived, some time ago.
        """
        if self.whole is not None:
            self.whole.catch_up(now)
            return
        changes, seen = self.endpoint_changes, self.seen
        now = max(now, changes.looked_at)
        for one in (self, *self.tiers):
            one.seen = changes.revision
        if changes.state_revision > seen:
            for one in (self, *self.tiers):
                one.balancer.looked_at = changes.looked_at
                one.balancer.refresh(now)
        policies = [self.balancer.policy, *(part.balancer.policy for part in self.tiers)]
        replicas = self.replicas
        candidates = policies[0].report_candidates() if len(policies) == 1 else None
        reports = changes.reports_since(seen) if candidates is None else changes.reports_of(candidates, seen)
        for report in reports:
            endpoint, at = report.endpoint, report.at
            replica = replicas.get(endpoint.address)
            # One that has reported since, with an answer, knows better.
            if replica is None or replica.endpoint is not endpoint or replica.reported_at > at:
                continue
            for policy in policies:
                if policy.wants_report(replica):
                    if replica.reported_at < at:
                        replica.take_report()
                    policy.reported(replica, at)
