"""The keys of the records in the store. Each fleet has a prefix, so that fleets can share an etcd."""

from __future__ import annotations

PREFIX = "/isochrone/"


class Keys:
    """The keys of one fleet."""

    def __init__(self, fleet: str) -> None:
        self.fleet_name = fleet
        self.prefix = f"{PREFIX}{fleet}/"
        #: The fleet.yaml that was applied last.
        self.fleet = f"{self.prefix}fleet"
        #: The committed assignment: the only commit point.
        self.epoch = f"{self.prefix}epoch"
        #: A copy of it, to restore it from.
        self.epoch_copy = f"{self.prefix}epoch-copy"
        #: The strict switch in progress, if any.
        self.switch = f"{self.prefix}switch"
        #: Changes whenever a gateway joins or leaves for good: a commit is conditional on it.
        self.gateway_set = f"{self.prefix}gateway-set"
        #: The name of the leading controller, under its lease.
        self.leader = f"{self.prefix}leader"
        #: The supervisor that runs the processes, under its lease.
        self.supervisor = f"{self.prefix}supervisor"
        #: How far the leader has reconciled the fleet record. The key keeps its earlier name.
        self.reconciled = f"{self.prefix}converged"
        #: What workers cannot load, as the leader sees it.
        self.load_failures = f"{self.prefix}load-failures"
        #: Who signed what workers serve, as the leader sees it.
        self.signers = f"{self.prefix}signers"
        #: What the leader measured of the models of planned pools.
        self.figures = f"{self.prefix}figures"
        #: The access rules of all processes.
        self.access = f"{self.prefix}access"
        #: Why the access file is not followed, as the leader sees it.
        self.access_fault = f"{self.prefix}access-fault"
        #: The restarts that are not over, as the supervisor sees them.
        self.restarts = f"{self.prefix}restarts"
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
        self.standbys = f"{self.prefix}standbys/"
        self.pool_sizes = f"{self.prefix}pool-sizes/"
        self.waiting = f"{self.prefix}waiting/"
        self.placements = f"{self.prefix}placements/"
        self.slo_totals = f"{self.prefix}slo-totals/"
        self.processes = f"{self.prefix}processes/"
        self.xds_servers = f"{self.prefix}xds-servers/"
        self.events = f"{self.prefix}events/"

    def worker(self, name: str) -> str:
        """A registered worker, under its lease."""
        return self.workers + name

    def gateway(self, name: str) -> str:
        """A registered gateway and the epoch that it serves, under its lease."""
        return self.gateways + name

    def known_gateway(self, name: str) -> str:
        """A gateway that may be serving, registered or not; stays until it deregisters or is known to be dead."""
        return self.known_gateways + name

    def seen_epoch(self, name: str) -> str:
        """The epoch that a gateway reported last, and its incarnation; outlives its registration."""
        return self.seen_epochs + name

    def served_epoch(self, name: str) -> str:
        """The whole epoch that a gateway serves, offered while the record itself cannot be read."""
        return self.served_epochs + name

    def acknowledgement(self, switch: str, gateway: str) -> str:
        return f"{self.acknowledgements}{switch}/{gateway}"

    def rollout(self, identity: str) -> str:
        return self.rollouts + identity

    def drain(self, name: str) -> str:
        """A worker or gateway that gets no new work."""
        return self.drains + name

    def standby(self, name: str) -> str:
        """A worker that has loaded its models and gets no requests yet."""
        return self.standbys + name

    def pool_size(self, pool: str) -> str:
        """The number of workers that the autoscaler gave a pool."""
        return self.pool_sizes + pool

    def placement(self, pool: str) -> str:
        """The workers of a planned pool that have each model."""
        return self.placements + pool

    def slo_totals_of(self, model: str) -> str:
        """Requests of a model in time, and others, over the last day."""
        return self.slo_totals + model

    def waiting_at(self, gateway: str) -> str:
        """The models whose requests wait at a gateway for a worker, under its lease."""
        return self.waiting + gateway

    def process(self, name: str) -> str:
        """A process that died and does not serve yet."""
        return self.processes + name

    def xds_server(self, name: str) -> str:
        """A controller that serves xDS and the epoch that its clients have taken over, under its lease."""
        return self.xds_servers + name

    def event(self, stamp: str) -> str:
        return self.events + stamp
