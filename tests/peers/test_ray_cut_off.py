"""A Ray node is cut off from all others while its processes live: needs network namespaces, and so root."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from fleet_trial import trial, wait_until

from bench.control.etcd_cluster import EtcdCluster
from bench.control.fleet_run import Shape
from bench.control.machine_fleet import etcd_members
from bench.control.machines import Network
from bench.control.models import write_repository
from bench.engines.ray_cluster import RayNodes, places_of
from bench.engines.ray_fleet import EDGE, RayFleet

pytestmark = [pytest.mark.peers, pytest.mark.timeout(300)]

WORKERS = 4
SECONDS = 120.0


def test_a_node_is_cut_off_and_joins_again(tmp_path: Path) -> None:
    with ExitStack() as stack:
        network = stack.enter_context(Network(["node-1", "node-2", "node-3", "etcd-1"]))
        places = [place for place in places_of(network) if place.name.startswith("node-")]
        cluster = stack.enter_context(RayNodes(places, labels={places[0].name: EDGE}))
        etcd = stack.enter_context(EtcdCluster(tmp_path / "etcd", etcd_members(network)))
        repository = write_repository(tmp_path / "models", 2)
        shape = Shape(workers=WORKERS, gateways=2, controllers=2)
        fleet = stack.enter_context(RayFleet(tmp_path / "fleet", repository, shape, cluster, etcd))
        node = next(place for place in places[1:] if place.address in fleet.nodes_of_workers().values())

        def moved() -> bool:
            return node.address not in fleet.nodes_of_workers().values() and fleet.capacity() == WORKERS

        with trial(fleet, tmp_path / "history") as load:
            network.cut(node.name)
            wait_until(moved, "the workers run on other nodes", SECONDS)
            network.join(node.name)
            # Two workers of one name must not be left.
            wait_until(lambda: not cluster.processes_on(node.name), "those that were replaced end", SECONDS)
            assert moved()
            load.finish(load.start("2"))
