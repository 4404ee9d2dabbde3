"""Names of the records in the store. All lie under one prefix per fleet, so that fleets can share an etcd."""

from __future__ import annotations

PREFIX = "/isochrone/"


class Keys:
    """The keys of one fleet."""

    def __init__(self, fleet: str) -> None:
        self.prefix = f"{PREFIX}{fleet}/"
        #: The fleet.yaml that was applied last, checked and in full.
        self.fleet = f"{self.prefix}fleet"
        #: The committed assignment: the one commit point.
        self.epoch = f"{self.prefix}epoch"
        #: The same, written with it: restored from when the other cannot be read.
        self.epoch_copy = f"{self.prefix}epoch-copy"
        #: The strict switch under way, if any.
        self.switch = f"{self.prefix}switch"
        #: Changes whenever a gateway comes or goes for good: a commit compares it.
        self.gateway_set = f"{self.prefix}gateway-set"
        #: Name of the controller that leads; goes with its lease.
        self.leader = f"{self.prefix}leader"
        #: How far the leader has followed the fleet record.
        self.converged = f"{self.prefix}converged"
        #: Counts rollouts.
        self.rollout_number = f"{self.prefix}rollout-number"
        self.workers = f"{self.prefix}workers/"
        self.gateways = f"{self.prefix}gateways/"
        self.known_gateways = f"{self.prefix}known-gateways/"
        self.seen_epochs = f"{self.prefix}seen-epochs/"
        self.served_epochs = f"{self.prefix}served-epochs/"
        self.acknowledgements = f"{self.prefix}acknowledgements/"
        self.rollouts = f"{self.prefix}rollouts/"
        self.drains = f"{self.prefix}drains/"
        self.processes = f"{self.prefix}processes/"
        self.events = f"{self.prefix}events/"

    def worker(self, name: str) -> str:
        """A worker that is there; goes with its lease."""
        return self.workers + name

    def gateway(self, name: str) -> str:
        """A gateway that is there, and the epoch it serves; goes with its lease."""
        return self.gateways + name

    def known_gateway(self, name: str) -> str:
        """A gateway that may be serving, heard of or not; stays until it says farewell or is known to be dead."""
        return self.known_gateways + name

    def seen_epoch(self, name: str) -> str:
        """What a gateway has served by, and as which incarnation; stays when it is not heard of any more."""
        return self.seen_epochs + name

    def served_epoch(self, name: str) -> str:
        """The whole epoch that a gateway serves by, offered while the record itself cannot be read."""
        return self.served_epochs + name

    def acknowledgement(self, switch: str, gateway: str) -> str:
        return f"{self.acknowledgements}{switch}/{gateway}"

    def rollout(self, identity: str) -> str:
        return self.rollouts + identity

    def drain(self, name: str) -> str:
        """A worker or gateway that is to get no new work."""
        return self.drains + name

    def process(self, name: str) -> str:
        """A process that died and does not serve again yet."""
        return self.processes + name

    def event(self, stamp: str) -> str:
        return self.events + stamp
