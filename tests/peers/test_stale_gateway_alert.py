"""``GatewayStale`` fires in a real Prometheus for a gateway that is cut off from etcd while a version is committed.

The gateway reaches the store through a relay that falls silent. Its registration expires, it serves its last epoch, and
Prometheus still finds its page.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from monitored_fleet import BODY, PATIENT, SECONDS, until
from prometheus_server import start_rendered

from bench.control.etcd_cluster import EtcdCluster, loopback_members
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import SOLO, write_repository
from emulated_link import EmulatedLink
from gateway_process import GatewayProcess, start_gateway

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

#: The gateway that is cut off, beside the fleet's own one.
FAR = "far"
_EPOCH = "isochrone_gateway_epoch"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path / "etcd", loopback_members(1)) as cluster:
        yield cluster


@pytest.fixture
def fleet(etcd: EtcdCluster, tmp_path: Path) -> Iterator[SupervisedFleet]:
    shape = Shape(workers=1, gateways=1, controllers=1)
    repository = write_repository(tmp_path / "models", 2)
    with SupervisedFleet(tmp_path / "fleet", repository, shape, etcd) as fleet:
        yield fleet


def version_at(gateway: GatewayProcess) -> str:
    host, _, port = gateway.http_url.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    try:
        connection.request("POST", f"/v2/models/{SOLO}/infer", BODY, dict(PATIENT))
        return str(json.loads(connection.getresponse().read())["model_version"])
    finally:
        connection.close()


def test_a_gateway_that_misses_a_commit(etcd: EtcdCluster, fleet: SupervisedFleet, tmp_path: Path) -> None:
    with EmulatedLink(int(etcd.members[0].client.rpartition(":")[2])) as link:
        member = ("--store", f"etcd:http://{link.address}", "--fleet", "proof", "--name", FAR, "--lease-seconds", "2")
        with (
            start_gateway([], *member, log_path=tmp_path / "far.log") as far,
            start_rendered(tmp_path / "prometheus", str(fleet.file)) as prometheus,
        ):
            for name in ("gw", FAR):
                until(lambda name=name: prometheus.readings(_EPOCH, name=name) >= 5, f"the epoch of {name}")  # type: ignore[misc]
            until(lambda: not prometheus.firing("GatewayStale"), "silence")
            assert version_at(far) == "1"
            link.silence()
            until(lambda: prometheus.firing("StoreUnreachable", name=FAR), "StoreUnreachable")
            assert not prometheus.firing("GatewayStale")
            fleet.api.start_rollout({SOLO: "2"}, "fast", canary=False)
            until(lambda: fleet.api.versions()[SOLO] == "2", "the commit", fleet.api.rollouts)
            (found,) = until(
                lambda: prometheus.firing("GatewayStale", name=FAR),
                "GatewayStale",
                lambda: prometheus.ask("query", query=_EPOCH),
            )
            assert FAR in found["annotations"]["summary"]
            # The fleet's own gateway follows; callers of the other one still get the version before.
            until(lambda: not prometheus.firing("GatewayStale", name="gw"), "the fleet's own gateway to follow")
            assert prometheus.firing("GatewayStale", name=FAR)
            assert version_at(far) == "1"
            link.mend()
            until(lambda: not prometheus.firing("GatewayStale"), "the end of GatewayStale")
            assert version_at(far) == "2"
