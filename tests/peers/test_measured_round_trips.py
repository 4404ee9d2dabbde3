"""A gateway's figure for the round trip to a worker, over a network whose delay is known."""

from __future__ import annotations

import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.links.network import FAR, NEAR, EmulatedNetwork
from bench.links.settings import LinkSettings
from gateway_process import GatewayProcess, start_gateway
from sample_models import write_models
from server_process import start_server

pytestmark = pytest.mark.peers

#: Of one way.
DELAY = 0.02
_LIMIT = 60.0


def round_trips(gateway: GatewayProcess) -> dict[str, float]:
    """By address."""
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.metrics_port}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    return {
        sample.labels["worker"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "isochrone_gateway_worker_round_trip_seconds"
    }


def measure(directory: Path) -> None:
    """In the thread that enters the emulated network."""
    try:
        network = EmulatedNetwork(LinkSettings(DELAY))
    except OSError as error:
        pytest.skip(f"no network with a delay: {error.strerror}")
    repository = write_models(directory / "models", "identity_fp32")
    with network, start_server(repository, "--host", NEAR) as worker:
        near, far = (f"{host}:{worker.http_port}" for host in (NEAR, FAR))
        with start_gateway((near, far), log_path=directory / "gateway.log") as gateway:
            gateway.wait_workers(2)
            ends = time.monotonic() + _LIMIT
            while True:
                found = round_trips(gateway)
                # A packet is never faster than the network; on a busy machine some are slower.
                assert found[far] >= 2 * DELAY
                if found[far] < 2.5 * DELAY and found[near] < DELAY:
                    break
                assert time.monotonic() < ends, found
                time.sleep(0.1)


def test_a_delay_of_the_network_is_measured(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as own_thread:
        own_thread.submit(measure, tmp_path).result()
