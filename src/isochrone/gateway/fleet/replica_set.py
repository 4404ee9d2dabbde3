"""The way to one version of one model: who serves it, and what is stamped on requests that go there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from isochrone.gateway.placement.balancer import Balancer
from isochrone.gateway.replicas import Replica
from isochrone.protocol.grpc.routing_fields import version_field
from isochrone.protocol.stages import STAGES_HEADER
from isochrone.wire.http2.hpack import encode_literal

if TYPE_CHECKING:
    from isochrone.gateway.fleet.member import Member


class ReplicaSet:
    """One version of one model, and who serves it."""

    __slots__ = ("balancer", "replicas", "stage_field", "stages", "stamp", "tag", "tiers", "version", "whole")

    def __init__(self, version: str, balancer: Balancer, stages: bytes = b"") -> None:
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
        self.replicas: dict[str, Replica] = {}
        #: Its parts by tier, nearest first, where tiers matter; and of a part, the whole.
        self.tiers: tuple[ReplicaSet, ...] = ()
        self.whole: ReplicaSet | None = None

    def update(self, members: Iterable[Member], model: str, now: int) -> None:
        """These members serve it; replicas that stay keep what is known of them."""
        replicas: dict[str, Replica] = {}
        for member in members:
            address = member.upstream.address
            replica = self.replicas.get(address)
            if replica is None or replica.endpoint is not member.endpoint:
                replica = Replica(member.endpoint)
            replica.digest = (member.serves or {}).get(model, {}).get(self.version, "")
            replicas[address] = replica
        if replicas == self.replicas:
            self.balancer.refresh(now)
        else:
            self.replicas = replicas
            self.balancer.update(list(replicas.values()), now)
        for part in self.tiers:
            # The same replicas: what is known of them is known in every part.
            part.replicas = replicas
            part.balancer.update(list(replicas.values()), now)

    def refresh(self, now: int) -> None:
        """Health, ejections and slow start have moved on."""
        self.balancer.refresh(now)
        for part in self.tiers:
            part.balancer.refresh(now)
