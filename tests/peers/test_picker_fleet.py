"""A picker that belongs to a fleet, asked by a real Envoy: committed versions, and strict switches under load."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from picking_envoy import start_envoy

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.models import Service, write_repository
from bench.gateway.proxies.envoy import binary
from bench.worker.peers.process import PeerUnavailable
from picker_process import start_picker

pytestmark = pytest.mark.peers

_MODEL = "stage_a"
_BODY = json.dumps({"inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [21]}]}).encode()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[SupervisedFleet]:
    try:
        binary()
    except PeerUnavailable as error:
        pytest.skip(str(error))
    write_repository(tmp_path / "models", 3, Service(milliseconds=2.0))
    shape = Shape(workers=2, gateways=1, controllers=1)
    with SupervisedFleet(tmp_path / "fleet", tmp_path / "models", shape) as running:
        yield running


class Callers:
    """Threads that ask again and again through Envoy, each with when it began and ended and the version it got."""

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self.answers: list[tuple[float, float, int, str]] = []
        self._threads = [threading.Thread(target=self._ask_again) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask_again(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._stop.is_set():
            began = time.monotonic()
            connection.request("POST", f"/v2/models/{_MODEL}/infer", _BODY)
            answer = connection.getresponse()
            body = json.loads(answer.read())
            self.answers.append((began, time.monotonic(), answer.status, body.get("model_version", str(body))))
        connection.close()

    def stop(self) -> list[tuple[float, float, int, str]]:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        return self.answers


def _version_by_grpc(port: int) -> str:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
        given = triton_grpc.InferInput("X", [1, 1], "FP32")
        given.set_data_from_numpy(np.ones((1, 1), np.float32))
        return str(client.infer(_MODEL, [given]).get_response().model_version)


def test_strict_switches_through_a_picker(fleet: SupervisedFleet, tmp_path: Path) -> None:
    store = f"sqlite:{fleet.file.parent / 'fleet.db'}"
    member = ("--store", store, "--fleet", "proof", "--name", "picker-1")
    with (
        start_picker([], tmp_path / "picker.log", *member) as picker,
        start_envoy(tmp_path, picker.picker_port, "FULL_DUPLEX_STREAMED") as envoy,
    ):
        assert _version_by_grpc(envoy.port) == "1"
        callers = Callers(envoy.port, 4)
        for version in ("2", "3"):
            identity = fleet.api.start_rollout({_MODEL: version}, "strict")
            assert fleet.api.wait(identity)["state"] == "done"
            assert _version_by_grpc(envoy.port) == version
        answers = callers.stop()
    assert {status for _, _, status, _ in answers} == {200}, [each for each in answers if each[2] != 200][:3]
    assert {version for *_, version in answers} == {"1", "2", "3"}
    # Nobody who began after somebody had the new version got the old one.
    for new, old in (("2", "1"), ("3", "2"), ("3", "1")):
        first_new = min(ended for _, ended, _, version in answers if version == new)
        assert not [each for each in answers if each[3] == old and each[0] > first_new]
