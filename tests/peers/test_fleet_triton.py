"""Real Tritons as the workers of a fleet: versions change through the control plane while stock clients send load.

Two servers, two gateways, two models that change as one. Triton says nothing of its digests, and loads again whatever a
load names; what holds all the same is what is asserted here.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import yaml
from fleet_trial import Trial, isochrone, wait_until

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.history import ERROR, OK, Answer
from bench.control.running_fleet import CONTROLLER
from bench.worker.peers import triton
from bench.worker.peers.process import Peer, environment_python, scratch

pytestmark = pytest.mark.peers

MODELS = ("solo", "duo")
MODULES: dict[str, Any] = {"http": triton_http, "grpc": triton_grpc}
#: Seconds a client rests between two requests: four of them and two Tritons share two cores.
REST_SECONDS = 0.02

_CONFIG = """name: "{name}"
backend: "python"
max_batch_size: 0
input {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }}
output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }}, {{ name: "VERSION" data_type: TYPE_INT32 dims: [ 1 ] }} ]
"""
#: The file that ran speaks, not what the server believes.
_SOURCE = """
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [self.one(pb.get_input_tensor_by_name(request, "IN").as_numpy()) for request in requests]

    def one(self, given):
        version = np.full(given.shape, {version}, np.int32)
        return pb.InferenceResponse([pb.Tensor("OUT", given * 2), pb.Tensor("VERSION", version)])
"""


def write_models(repository: Path, versions: Sequence[int]) -> Path:
    for name in MODELS:
        for version in versions:
            (repository / name / str(version)).mkdir(parents=True)
            (repository / name / str(version) / "model.py").write_text(_SOURCE.format(version=version))
        (repository / name / "config.pbtxt").write_text(_CONFIG.format(name=name))
    return repository


class TritonFleet(SupervisedFleet):
    """Started by ``isochrone up`` in front of Tritons that run already."""

    def __init__(self, directory: Path, peers: Sequence[Peer]) -> None:
        super().__init__(directory, directory, Shape(workers=0))
        document = yaml.safe_load(self.text)
        addresses = [
            f"{str(peer.http_url).removeprefix('http://')},grpc={str(peer.grpc_address).rpartition(':')[2]}"
            for peer in peers
        ]
        document["pools"] = {"triton": {"kind": "triton", "addresses": addresses}}
        document["models"] = {name: {"version": "1"} for name in MODELS}
        document["models"]["solo"]["with"] = ["duo"]
        self.text = yaml.safe_dump(document, sort_keys=False)

    def _serves(self) -> bool:
        served = self.api.versions()
        return set(served) >= set(MODELS) and not self.api.status()["rollouts"] and self.responds("gw-1")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonFleet]:
    with ExitStack() as stack:
        peers = []
        # The second one has never heard of version 4.
        for versions in ((1, 2, 3, 4), (1, 2, 3)):
            directory = stack.enter_context(scratch("fleet-triton"))
            repository = write_models(directory / "models", versions)
            flags = ("--model-control-mode=explicit", "--strict-readiness=false")
            serving = triton.serve_repository(repository, environment_python(""), directory, (), flags)
            peers.append(stack.enter_context(serving))
        fleet = TritonFleet(tmp_path_factory.mktemp("fleet"), peers)
        stack.enter_context(fleet)
        yield fleet


class Client(threading.Thread):
    """A stock client in a loop, over one gateway; every request on record."""

    def __init__(self, transport: str, gateway: str, over: threading.Event) -> None:
        super().__init__(name=f"{transport} {gateway}")
        self._module = MODULES[transport]
        self._gateway = gateway
        self._over = over
        self.answers: list[Answer] = []

    def run(self) -> None:
        with self._module.InferenceServerClient(self._gateway) as client:
            for number in itertools.count(1):
                if self._over.wait(REST_SECONDS):
                    return
                self.answers.append(self._one(client, MODELS[number % 2], number))

    def _one(self, client: Any, model: str, number: int) -> Answer:
        given = self._module.InferInput("IN", [1], "INT32")
        given.set_data_from_numpy(np.array([number], np.int32))
        started = time.monotonic_ns()
        try:
            result = client.infer(model, [given])
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            return Answer(self.name, self._gateway, model, started, time.monotonic_ns(), "", (), ERROR, told)
        ended = time.monotonic_ns()
        response = result.get_response()
        version = response["model_version"] if isinstance(response, dict) else response.model_version
        wrong = "" if result.as_numpy("OUT").tolist() == [2 * number] else f"wrong answer to {number}: {response}"
        stages = ((model, str(int(result.as_numpy("VERSION")[0]))),)
        outcome = ERROR if wrong else OK
        return Answer(self.name, self._gateway, model, started, ended, version, stages, outcome, wrong)


@contextmanager
def stock_load(fleet: TritonFleet) -> Iterator[Trial]:
    """Load while the block runs; then the history has to be without a violation and without a failure."""
    fleet.wait_serving()
    trial = Trial(fleet)
    over = threading.Event()
    clients = [Client(transport, gateway, over) for transport in MODULES for gateway in fleet.gateways]
    for client in clients:
        client.start()
    try:
        _more(clients)
        yield trial
        _more(clients)
    finally:
        over.set()
        for client in clients:
            client.join(60)
    trial.history = [answer for client in clients for answer in client.answers]
    trial.prove({})


def _more(clients: Sequence[Client], count: int = 20) -> None:
    """Every client has got so many answers from now on."""
    goals = [len(client.answers) + count for client in clients]
    wait_until(
        lambda: all(len(client.answers) >= goal for client, goal in zip(clients, goals, strict=True)), "more answers"
    )


def _command(fleet: TritonFleet, trial: Trial, *words: str, status: int = 0) -> dict[str, Any]:
    """The rollout that a command asked for and waited for."""
    asked = trial.log.ask(time.monotonic_ns())
    told = isochrone("rollout", *words, "--json", "--api", fleet.of(CONTROLLER)[0].address, status=status)
    record: dict[str, Any] = json.loads(told)
    asked.see(record, time.monotonic_ns())
    return record


@pytest.mark.parametrize(("cutover", "version"), [("fast", "2"), ("strict", "3")])
def test_a_version_changes_under_load_and_back(fleet: TritonFleet, cutover: str, version: str) -> None:
    changes = [f"{model}={version}" for model in MODELS]
    with stock_load(fleet) as trial:
        changed = _command(fleet, trial, "start", *changes, "--cutover", cutover)
        assert fleet.api.versions() == dict.fromkeys(MODELS, version)
        back = _command(fleet, trial, "rollback", "solo")
        assert back["kind"] == "rollback"
        assert fleet.api.versions() == dict.fromkeys(MODELS, "1")
    assert {answer.version for answer in trial.history} == {"1", version}
    for record, what in ((changed, cutover), (back, "rollback")):
        took = max(record["since"].values()) - record["at"]
        print(f"{what}: {took:.2f} s; {len(trial.history)} requests, the longest {trial.longest_ms():.0f} ms")


def test_a_version_that_one_of_them_lacks_is_aborted(fleet: TritonFleet) -> None:
    with stock_load(fleet) as trial:
        record = _command(fleet, trial, "start", "solo=4", "duo=4", "--cutover", "strict", status=1)
        assert record["state"] == "aborted"
        assert "version 4: expected in its model repository" in record["reason"]
        assert fleet.api.versions() == dict.fromkeys(MODELS, "1")
    assert {answer.version for answer in trial.history} == {"1"}
