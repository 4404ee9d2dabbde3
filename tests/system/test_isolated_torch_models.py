"""torch models in processes of their own, behind a real worker: a death costs one model, and only what ran in it."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from stock_clients import StockClient
from tritonclient.utils import InferenceServerException

from sample_models import write_config
from server_process import ServerProcess, StartServer
from watching import wait_for

pytestmark = pytest.mark.long

_CONFIG = """
backend: "pytorch"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
dynamic_batching { max_queue_delay_microseconds: 20000 }
"""
_ISOLATED = 'parameters { key: "isolation" value { string_value: "process" } }\n'
_TIMEOUT = 'parameters { key: "execution_timeout_ms" value { string_value: "1500" } }\n'
_MODELS = {"inside": "", "sturdy": _ISOLATED, "fragile": _ISOLATED + _TIMEOUT}
_KILLS = 4


class Doubler(torch.nn.Module):  # type: ignore[misc]
    """Doubles; never returns for a negative number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        while bool((y < 0).any()):
            y = y * 1.0
        return y * 2


@pytest.fixture
def server(tmp_path: Path, server_factory: StartServer) -> Iterator[ServerProcess]:
    repository = tmp_path / "models"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(Doubler())
        for name, parameters in _MODELS.items():
            write_config(repository / name, _CONFIG + parameters)
            (repository / name / "1").mkdir()
            scripted.save(str(repository / name / "1" / "model.pt"))
    with server_factory(repository, "--model-control-mode", "explicit") as started:
        yield started


def infer(client: StockClient, model: str, number: float) -> list[float]:
    result = client.infer(model, {"X": np.array([[number, 1]], np.float32)})
    return [float(value) for value in result.as_numpy("Y").ravel()]


def children(server: ServerProcess) -> set[int]:
    return {child.pid for child in psutil.Process(server.pid).children()}


def loaded(server: ServerProcess, client: StockClient, model: str) -> set[int]:
    """Loads a model; the processes that the worker started for it."""
    before = children(server)
    client.call("load_model", model)
    return children(server) - before


class Caller(threading.Thread):
    """Calls one model until it is stopped, and counts."""

    def __init__(self, server: ServerProcess, model: str) -> None:
        super().__init__()
        self._server = server
        self._model = model
        self.stopped = threading.Event()
        self.answers = 0
        self.failures: list[str] = []

    def run(self) -> None:
        with closing(StockClient("grpc", self._server)) as client:
            while not self.stopped.is_set():
                try:
                    assert infer(client, self._model, self.answers) == [2.0 * self.answers, 2.0]
                    self.answers += 1
                except (InferenceServerException, AssertionError) as error:
                    self.failures.append(str(error))


def test_a_model_that_dies_again_and_again_costs_the_others_nothing(server: ServerProcess) -> None:
    with closing(StockClient("http", server)) as client:
        assert not loaded(server, client, "inside")
        (sturdy,) = loaded(server, client, "sturdy")
        (fragile,) = loaded(server, client, "fragile")
        callers = [Caller(server, model) for model in ("inside", "inside", "sturdy", "sturdy", "fragile", "fragile")]
        for caller in callers:
            caller.start()
        try:
            for _ in range(_KILLS):
                answered = callers[-1].answers
                wait_for(lambda least=answered + 5: callers[-1].answers >= least)
                os.kill(fragile, signal.SIGKILL)
                wait_for(lambda dead=fragile: len(children(server) - {sturdy, dead}) == 1)
                (fragile,) = children(server) - {sturdy}
            for caller in callers:
                wait_for(lambda each=caller, least=caller.answers + 5: each.answers >= least)
        finally:
            for caller in callers:
                caller.stopped.set()
            for caller in callers:
                caller.join()
        assert [caller.failures for caller in callers[:4]] == [[], [], [], []]
        for failure in callers[4].failures + callers[5].failures:
            assert "infer: its process was killed by SIGKILL" in failure
        # A request fails at most in the process that was killed: each caller has one at a time.
        assert len(callers[4].failures) <= _KILLS
        assert len(callers[5].failures) <= _KILLS
        assert children(server) == {sturdy, fragile}
        client.call("unload_model", "fragile")
        wait_for(lambda: children(server) == {sturdy})


@pytest.mark.parametrize("place", range(3))
def test_the_mates_of_a_request_that_hangs_are_served(server: ServerProcess, place: int) -> None:
    """The process is killed for it twice: with the whole batch, and with this request alone."""
    numbers = [3.0, 4.0]
    numbers.insert(place, -1.0)

    def one(number: float) -> str | list[float]:
        with closing(StockClient("grpc", server)) as client:
            try:
                return infer(client, "fragile", number)
            except InferenceServerException as error:
                return str(error)

    with closing(StockClient("http", server)) as client, ThreadPoolExecutor(3) as pool:
        client.call("load_model", "fragile")
        answers = list(pool.map(one, numbers))
        hung = answers.pop(place)
        assert "infer took longer than execution_timeout_ms = 1500, its process was killed" in hung
        assert answers == [[6.0, 2.0], [8.0, 2.0]]
        assert infer(client, "fragile", 5) == [10.0, 2.0]
