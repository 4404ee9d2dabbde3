"""A gRPC client without a proxy follows a real fleet: strict rollouts, a pipeline, a worker's death, a drained worker.

No gateway is in the path. Every answer comes from one committed epoch, as the history checker sees it, and no request
fails; each client changes over when it has the new routes, so a strict cutover is a fast one here.
"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from real_fleets import command, requests_had, small_fleet, until

from bench.control.checker import FAST, Commit
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import CHAIN, SOLO, STAGES
from bench.control.rollout_log import RolloutLog
from bench.control.running_fleet import WORKER
from isochrone.protocol.headers.version_pins import DOMAIN, model_authority
from xds_fleet import GrpcClient, assert_explained, grpc_bootstrap, grpc_calls, xds_controller

pytestmark = pytest.mark.long

PIPELINE = (CHAIN, *STAGES)


def _as_fast(commits: list[Commit]) -> list[Commit]:
    """What is promised to clients of xDS."""
    return [Commit(each.epoch, each.versions, FAST, each.canary, each.asked_ns) for each in commits]


def _rolled_out(fleet: SupervisedFleet, log: RolloutLog, version: str, *models: str) -> None:
    asked = log.ask(time.monotonic_ns())
    asked.identity = fleet.api.start_rollout(dict.fromkeys(models, version), "strict")
    fleet.api.wait(asked.identity, 90, asked.see)
    assert asked.state == "done", asked.record


def test_rollouts_and_deaths_without_a_gateway(tmp_path: Path) -> None:
    shape = Shape(workers=3, gateways=1, controllers=1, lease_seconds=2.0)
    with small_fleet(tmp_path, shape, versions=5) as fleet, xds_controller(fleet, tmp_path) as port:
        log = RolloutLog(fleet.api.status()["epoch"], fleet.api.versions())
        with GrpcClient(port, tmp_path, (SOLO, CHAIN)) as client:
            client.wait_answers()
            for version in ("2", "3", "4"):
                _rolled_out(fleet, log, version, SOLO)
                _rolled_out(fleet, log, version, *PIPELINE)
                client.wait_answers()
            assert {answer.version for answer in client.history[-4:]} == {"4"}

            # A rollout back to an earlier number: the highest version that a worker has is not the committed one.
            _rolled_out(fleet, log, "3", SOLO)
            client.wait_answers(20)
            assert {answer.version for answer in client.history[-10:] if answer.model == SOLO} == {"3"}

            # A worker dies; it comes back with nothing loaded, and gets requests when it has everything.
            name = fleet.of(WORKER)[0].name
            pid = fleet.signal(name, signal.SIGKILL)
            client.wait_answers(40)
            until(lambda: fleet.pid(name) not in (None, pid) and fleet.responds(name), "the worker to be back")
            client.wait_answers(40)

            # A drained worker gets no more requests.
            metrics = [fleet.ports[WORKER] + 3 * number + 2 for number in range(3)]
            assert command(fleet, "drain", fleet.of(WORKER)[1].name).status == 0
            before = requests_had(metrics[1])

            def is_left_alone() -> bool:
                nonlocal before
                last, before = before, requests_had(metrics[1])
                client.wait_answers(20)
                return requests_had(metrics[1]) == before == last

            until(is_left_alone, "the drained worker to be left alone")
        assert client.failed == []
        assert len(client.history) > 200
        commits = _as_fast(log.commits(fleet.api.rollouts()))
        assert len(commits) == 8
        assert_explained(client.history, commits)


def test_clients_keep_their_routes_while_no_controller_serves_them(tmp_path: Path) -> None:
    with small_fleet(tmp_path, Shape(workers=2, gateways=1, controllers=1)) as fleet, ExitStack() as clients:
        with xds_controller(fleet, tmp_path) as port:
            client = clients.enter_context(GrpcClient(port, tmp_path, (SOLO,)))
            client.wait_answers()
        client.wait_answers(20)
        # Nothing waits for clients of a controller that is gone: they find the old version as the previous one.
        assert fleet.api.wait(fleet.api.start_rollout({SOLO: "2"}, "strict"), 90)["state"] == "done"
        client.wait_answers(20)
        assert client.history[-1].version == "1"
        with xds_controller(fleet, tmp_path, port):
            until(lambda: client.history[-1].version == "2", "the client to follow again")
        clients.close()
        assert client.failed == []


def test_versions_models_and_what_has_no_route(tmp_path: Path) -> None:
    everything, solo, model = f"xds:///{DOMAIN}", f"xds:///{model_authority(SOLO)}", "x-isochrone-model"
    no_route = "StatusCode.UNAVAILABLE No matching route found in xDS route config"
    expected: list[tuple[tuple[str, str, str, str, dict[str, str]], str]] = [
        (("infer", solo, SOLO, "", {}), "2"),
        (("stream", solo, SOLO, "", {}), "2"),
        (("infer", solo, SOLO, "1", {model: "solo=1"}), "1"),
        (("stream", solo, SOLO, "", {model: "solo=1"}), "1"),
        (("infer", everything, SOLO, "", {model: SOLO}), "2"),
        (("infer", everything, CHAIN, "", {model: CHAIN}), "1"),
        (("infer", everything, SOLO, "", {}), no_route),
        (("infer", solo, SOLO, "3", {model: "solo=3"}), no_route),
        (("ready", solo, "", "", {}), no_route),
    ]
    shape = Shape(workers=1, gateways=1, controllers=1)
    with small_fleet(tmp_path, shape) as fleet, xds_controller(fleet, tmp_path) as port:
        assert fleet.api.wait(fleet.api.start_rollout({SOLO: "2"}), 90)["state"] == "done"
        until(lambda: grpc_calls(port, expected[0][0]) == ["2"], "the routes to arrive")
        assert grpc_calls(port, *(call for call, _ in expected)) == [outcome for _, outcome in expected]
        absent, contradicting, other = grpc_calls(
            port,
            ("infer", f"xds:///{model_authority('nobody')}", "nobody", "", {}),
            ("infer", solo, SOLO, "1", {}),
            ("stream", solo, CHAIN, "", {}),
        )
        assert "StatusCode.UNAVAILABLE" in absent
        assert "does not exist" in absent
        assert contradicting.startswith("StatusCode.INVALID_ARGUMENT the call was routed to version 2 of model 'solo'")
        assert "the call was routed to model 'solo', and its message names model 'chain'" in other


def test_a_client_that_does_not_pin_is_told_so_and_never_served_by_chance(tmp_path: Path) -> None:
    """Without trusted_xds_server, gRPC ignores the name that the routes give the call."""
    with (
        small_fleet(tmp_path, Shape(workers=1, gateways=1, controllers=1)) as fleet,
        xds_controller(fleet, tmp_path) as port,
    ):
        (server,) = grpc_bootstrap(port)["xds_servers"]
        untrusting = {**server, "server_features": ["xds_v3"]}
        with GrpcClient(port, tmp_path, (SOLO,), xds_servers=[untrusting]) as client:
            client.wait_answers(3, outcome="error")
        assert {answer.outcome for answer in client.history} == {"error"}
        for answer in client.failed:
            assert "INVALID_ARGUMENT" in answer.error
            assert "trusted_xds_server" in answer.error


def test_a_rollout_goes_on_when_the_clients_have_the_new_routes(tmp_path: Path) -> None:
    with (
        small_fleet(tmp_path, Shape(workers=1, gateways=1, controllers=1)) as fleet,
        xds_controller(fleet, tmp_path) as port,
        GrpcClient(port, tmp_path, (SOLO,)) as client,
    ):
        client.wait_answers()
        client.signal(signal.SIGSTOP)
        try:
            identity = fleet.api.start_rollout({SOLO: "2"}, "strict")

            def waits(record: dict[str, Any]) -> bool:
                assert record["state"] != "done", "the client still routes to version 1"
                return record["note"] == "waits for gateway control-9 (xDS) to see epoch 2"

            fleet.api.wait(identity, 90, until=waits)
        finally:
            client.signal(signal.SIGCONT)
        assert fleet.api.wait(identity, 90)["state"] == "done"
        client.wait_answers()
        assert client.history[-1].version == "2"
        assert client.failed == []
