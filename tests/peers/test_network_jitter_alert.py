"""``NetworkJitter`` fires in a real Prometheus when the way from a gateway to a worker gets longer.

The network is emulated in a namespace of its own, in which all processes of the test run; the kernel measures the round
trips (``TCP_INFO``) as over any other network.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from monitored_fleet import until
from prometheus_server import start_rendered

from bench.links.network import FAR, NEAR, EmulatedNetwork
from bench.links.settings import LinkSettings
from gateway_process import start_gateway
from sample_models import write_models
from server_process import start_server

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

#: Seconds of one way, before and after; and the limit. Far from both, so that a busy machine is no cause. A gateway
#: gives up a connection that takes a second.
DELAY, LONGER, LIMIT_MS = 0.005, 0.25, 200
_ROUND_TRIP = "isochrone_gateway_worker_round_trip_seconds"
#: A gateway takes the figure from a new connection when the last one is a minute old.
_RENEWED_SECONDS = 180.0


def cause(directory: Path) -> None:
    """In the thread that enters the emulated network."""
    try:
        network = EmulatedNetwork(LinkSettings(DELAY))
    except OSError as error:
        pytest.skip(f"no network with a delay: {error.strerror}")
    repository = write_models(directory / "models", "identity_fp32")
    with network, start_server(repository, "--host", NEAR, log_path=directory / "worker.log") as worker:
        near, far = (f"{host}:{worker.http_port}" for host in (NEAR, FAR))
        with start_gateway((near, far), log_path=directory / "gateway.log") as gateway:
            gateway.wait_workers(2)
            page = f"127.0.0.1:{gateway.metrics_port}"
            words = ("--gateway", page, "--jitter-ms", str(LIMIT_MS))
            with start_rendered(directory / "prometheus", *words) as prometheus:
                for worker_address in (near, far):
                    until(
                        lambda address=worker_address: prometheus.readings(_ROUND_TRIP, worker=address) >= 5,  # type: ignore[misc]
                        f"round trips to {worker_address}",
                    )
                assert not prometheus.firing("NetworkJitter")
                network.set(LinkSettings(LONGER))
                (found,) = until(
                    lambda: prometheus.firing("NetworkJitter"),
                    "NetworkJitter",
                    lambda: prometheus.values(_ROUND_TRIP),
                    _RENEWED_SECONDS,
                )
                # By the other way the same worker is as near as before.
                assert (found["labels"]["name"], found["labels"]["worker"]) == (page, far)
                assert float(found["value"]) > LIMIT_MS / 1000


def test_a_way_that_gets_longer(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as own_thread:
        own_thread.submit(cause, tmp_path).result()
