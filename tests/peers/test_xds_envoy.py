"""A real Envoy follows a real fleet: rollouts, a worker's death, versions, a canary, and load reports that steer it.

No gateway of ours is in the path. What is promised is checked on the history of the clients behind Envoy.
"""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException
from xds_envoy import XdsEnvoy, xds_envoy

from bench.control.checker import FAST, Commit
from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import CHAIN, SOLO, STAGES, Service, write_repository
from bench.control.rollout_log import RolloutLog
from bench.control.running_fleet import WORKER
from bench.worker.peers.process import PeerUnavailable
from fleet_load import FleetLoad
from xds_fleet import GrpcClient, xds_controller

pytestmark = pytest.mark.peers

LIMIT = 120.0


def until(look: Callable[[], object], what: str) -> None:
    ends = time.monotonic() + LIMIT
    while not look():
        assert time.monotonic() < ends, f"waited in vain for {what}"
        time.sleep(0.05)


@contextmanager
def _fleet(directory: Path, versions: int = 4, slow: str = "") -> Iterator[tuple[SupervisedFleet, int]]:
    """With the port of xDS. ``slow``: a worker on which the model takes 0.1 s longer."""
    repository = directory / "models"
    write_repository(repository, versions, Service(milliseconds=2.0))
    for source in repository.glob(f"{SOLO}/*/model.py") if slow else ():
        text = source.read_text()
        waiting = f'        if _named("{slow}"):\n            time.sleep(0.1)\n        given = inputs'
        assert "        given = inputs" in text
        source.write_text(text.replace("        given = inputs", waiting))
    shape = Shape(workers=3, gateways=1, controllers=1, lease_seconds=2.0)
    with SupervisedFleet(directory / "fleet", repository, shape) as fleet, xds_controller(fleet, directory) as port:
        yield fleet, port


@contextmanager
def _envoy(port: int, directory: Path) -> Iterator[XdsEnvoy]:
    try:
        started = xds_envoy(port, directory)
        envoy = started.__enter__()
    except PeerUnavailable as error:
        pytest.skip(str(error))
    try:
        yield envoy
    finally:
        started.__exit__(None, None, None)


def _asked(address: str, path: str, **headers: str) -> tuple[int, Any]:
    body = json.dumps({"inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [21]}]}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://{address}{path}", body, named), timeout=60
        ) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"null")


def _called(address: str, model: str, version: str = "", **headers: str) -> str:
    with tritonclient.grpc.InferenceServerClient(address) as client:
        given = tritonclient.grpc.InferInput("X", [1, 1], "FP32")
        given.set_data_from_numpy(np.ones((1, 1), np.float32))
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return str(client.infer(model, [given], model_version=version, headers=named).get_response().model_version)


def _rolled_out(fleet: SupervisedFleet, log: RolloutLog, version: str, *models: str) -> None:
    asked = log.ask(time.monotonic_ns())
    asked.identity = fleet.api.start_rollout(dict.fromkeys(models, version), "strict")
    fleet.api.wait(asked.identity, 90, asked.see)
    assert asked.state == "done", asked.record


def test_envoy_follows_rollouts_and_a_death(tmp_path: Path) -> None:
    with _fleet(tmp_path) as (fleet, port), _envoy(port, tmp_path) as envoy:
        log = RolloutLog(fleet.api.status()["epoch"], fleet.api.versions())
        with FleetLoad([envoy.address]) as load:
            for version in ("2", "3"):
                _rolled_out(fleet, log, version, SOLO)
                _rolled_out(fleet, log, version, CHAIN, *STAGES)
                load.wait_answers()
            # Back to an earlier number: "latest" on the workers is another one.
            _rolled_out(fleet, log, "2", SOLO)
            load.wait_answers(20)
            pid = fleet.signal(fleet.of(WORKER)[0].name, signal.SIGKILL)
            load.wait_answers(60)
            until(lambda: fleet.pid(fleet.of(WORKER)[0].name) not in (None, pid), "another process")
            load.wait_answers(60)
        assert load.failed == []
        assert load.versions(SOLO) == {"1", "2", "3"}
        commits = log.commits(fleet.api.rollouts())
        load.check([Commit(each.epoch, each.versions, FAST, each.canary, each.asked_ns) for each in commits])
        for refused in ("cluster_manager.cds", "listener_manager.lds", "http.isochrone.rds.isochrone"):
            assert envoy.statistic(f"{refused}.update_rejected") == 0
            assert envoy.statistic(f"{refused}.update_success") >= 1
        # The routes of retired versions are gone, and so are their clusters.
        until(lambda: f"{SOLO}/1/http" not in envoy.host_weights(), "the cluster of version 1 to go")


def test_versions_over_both_protocols(tmp_path: Path) -> None:
    with _fleet(tmp_path) as (fleet, port), _envoy(port, tmp_path) as envoy:
        _rolled_out(fleet, RolloutLog(1, {}), "2", SOLO)
        path = f"/v2/models/{SOLO}"
        until(lambda: _asked(envoy.address, f"{path}/infer")[1]["model_version"] == "2", "the rollout to arrive")
        status, body = _asked(envoy.address, f"{path}/versions/1/infer")
        assert (status, body["model_version"]) == (200, "1")
        status, body = _asked(envoy.address, f"{path}/versions/3/infer")
        assert (status, body["error"]) == (404, f"model '{SOLO}' has no such version in the committed epoch")
        # A caller cannot choose the versions of stages.
        status, body = _asked(envoy.address, f"/v2/models/{CHAIN}/infer", x_isochrone_stages="stage_a=9,stage_b=9")
        assert (status, body["model_version"]) == (200, "1")

        assert _called(envoy.address, SOLO, x_isochrone_model=SOLO) == "2"
        assert _called(envoy.address, CHAIN, x_isochrone_model=CHAIN) == "1"
        assert _called(envoy.address, SOLO, "1", x_isochrone_model=f"{SOLO}=1") == "1"
        with pytest.raises(InferenceServerException, match=r"routed to version 2 of model 'solo'.*names version 1"):
            _called(envoy.address, SOLO, "1", x_isochrone_model=SOLO)
        with pytest.raises(InferenceServerException, match="routed to model 'chain'"):
            _called(envoy.address, SOLO, x_isochrone_model=CHAIN)
        with pytest.raises(InferenceServerException) as unknown:
            _called(envoy.address, SOLO, x_isochrone_model="nobody")
        assert unknown.value.status() == "StatusCode.UNIMPLEMENTED"


def test_a_canary_gets_its_share(tmp_path: Path) -> None:
    with _fleet(tmp_path) as (fleet, port), _envoy(port, tmp_path) as envoy:
        canary = {"steps": [0.5], "min_samples": 1_000_000, "max_seconds": 600}
        identity = fleet.api.start_rollout({SOLO: "2"}, canary=canary)

        def versions(**headers: str) -> set[str]:
            return {_asked(envoy.address, f"/v2/models/{SOLO}/infer", **headers)[1]["model_version"] for _ in range(20)}

        until(lambda: versions() == {"1", "2"}, "both versions to answer")
        assert versions(x_canary="always") == {"2"}
        assert versions(x_canary="never") == {"1"}
        called = {_called(envoy.address, SOLO, x_isochrone_model=SOLO) for _ in range(30)}
        assert called == {"1", "2"}
        fleet.api.abort(identity)
        fleet.api.wait(identity, 90)
        until(lambda: versions() == {"1"}, "the canary to be over")


def test_calls_on_a_worker_that_stands_still_are_made_on_another(tmp_path: Path) -> None:
    with _fleet(tmp_path) as (fleet, port), _envoy(port, tmp_path) as envoy:

        def call(_: int) -> str:
            return _called(envoy.address, SOLO, x_isochrone_model=SOLO)

        cluster = f"cluster.{SOLO}/1/grpc"
        with ThreadPoolExecutor(12) as pool:
            until(lambda: set(pool.map(call, range(24))) == {"1"}, "calls to succeed")
            connections = envoy.statistic(f"{cluster}.upstream_cx_active")
            assert connections == 3, "one for each worker"
            name = fleet.of(WORKER)[0].name
            assert fleet.signal(name, signal.SIGSTOP)
            try:
                # Those that reach it hang until its connection is given up: longer than Envoy knows it as an endpoint.
                assert set(pool.map(call, range(24), timeout=LIMIT)) == {"1"}
                until(
                    lambda: envoy.statistic(f"{cluster}.http2.keepalive_timeout") > 0, "the connection to be given up"
                )
            finally:
                fleet.signal(name, signal.SIGCONT)


def _answered(fleet: SupervisedFleet) -> list[int]:
    """By worker: inference requests so far."""
    found = []
    for number in range(fleet.shape.workers):
        port = fleet.ports[WORKER] + 3 * number + 2
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
            lines = page.read().decode().splitlines()
        found.append(
            int(sum(float(line.split()[-1]) for line in lines if line.startswith("nv_inference_request_success{")))
        )
    return found


def _shares(fleet: SupervisedFleet, wait: Callable[[int], None]) -> list[int]:
    """Requests of each worker once the weights are known."""
    wait(400)
    before = _answered(fleet)
    wait(300)
    return [after - earlier for after, earlier in zip(_answered(fleet), before, strict=True)]


def test_load_reports_steer_envoy_and_grpc(tmp_path: Path) -> None:
    """A worker that takes fifty times as long gets a small share, not a third."""
    with _fleet(tmp_path, slow="cpu-1") as (fleet, port):
        with _envoy(port, tmp_path) as envoy:
            with FleetLoad([envoy.address], rate=100.0, models=(SOLO,)) as load:
                slow, *fast = _shares(fleet, load.wait_answers)
            assert 3 * slow < min(fast), (slow, fast)
            assert load.failed == []
            weights = sorted(envoy.host_weights()[f"{SOLO}/1/http"].values())
            assert 3 * weights[0] < weights[1], weights
        with GrpcClient(port, tmp_path, (SOLO,)) as client:
            slow, *fast = _shares(fleet, client.wait_answers)
        assert 3 * slow < min(fast), (slow, fast)
        assert client.failed == []
