"""A worker that stands still, with its sockets open and its lease alive, is an endpoint no longer, until it moves."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from real_fleets import requests_had, small_fleet, until

from bench.control.fleet_run import Shape
from bench.control.models import SOLO
from bench.control.running_fleet import WORKER
from isochrone.protocol.headers.version_pins import model_authority
from xds_fleet import grpc_calls, xds_controller

pytestmark = pytest.mark.long


def test_a_stopped_worker_gets_no_calls(tmp_path: Path) -> None:
    call: tuple[str, str, str, str, dict[str, str]] = ("infer", f"xds:///{model_authority(SOLO)}", SOLO, "", {})
    # A lease that outlives the test: only the index shows that the worker does not move.
    shape = Shape(workers=2, gateways=1, controllers=1, lease_seconds=300.0)
    with small_fleet(tmp_path, shape) as fleet, xds_controller(fleet, tmp_path) as port:
        until(lambda: grpc_calls(port, call) == ["1"], "the routes to arrive")
        name, metrics = fleet.of(WORKER)[0].name, fleet.ports[WORKER] + 2
        assert fleet.signal(name, signal.SIGSTOP)
        try:
            log = tmp_path / "xds.log"
            until(lambda: "a worker does not answer" in log.read_text(), "the controller to notice it")
            # Each is a new client, which has the endpoints of now.
            for _ in range(3):
                assert grpc_calls(port, *[call] * 4) == ["1"] * 4
        finally:
            fleet.signal(name, signal.SIGCONT)
        before = requests_had(metrics)

        def is_called() -> bool:
            assert grpc_calls(port, *[call] * 4) == ["1"] * 4
            return requests_had(metrics) > before

        until(is_called, "calls for it again")
