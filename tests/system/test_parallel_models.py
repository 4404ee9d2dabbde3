"""Models over several ranks behind a real worker: the death of a rank costs what ran, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import save_model
from stock_clients import StockClient
from tritonclient.utils import InferenceServerException

from sample_models import write_config
from server_process import ServerProcess, StartServer
from watching import wait_for

pytestmark = pytest.mark.long

_SOURCE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def build():
    return nn.Sequential(Block(), Block(), Block(), Block())


tensor_parallel_plan = {"*.up": "colwise", "*.down": "rowwise"}
"""
_CONFIG = """
backend: "pytorch"
max_batch_size: 4
input {{ name: "X" data_type: TYPE_FP32 dims: [ 8 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ 8 ] }}
dynamic_batching {{ }}
instance_group {{ kind: {kind} count: 1 }}
parameters {{ key: "tensor_parallel" value {{ string_value: "{tensor}" }} }}
parameters {{ key: "pipeline_parallel" value {{ string_value: "{pipeline}" }} }}
"""
_MODELS = {"whole": (1, 1, "KIND_CPU"), "shared": (2, 2, "KIND_MODEL")}


@pytest.fixture
def server(tmp_path: Path, server_factory: StartServer) -> Iterator[ServerProcess]:
    repository = tmp_path / "models"
    weights = tmp_path / "model.safetensors"
    source: dict[str, object] = {}
    exec(_SOURCE, source)
    torch.manual_seed(2)
    save_model(source["build"](), str(weights))  # type: ignore[operator]
    for name, (tensor, pipeline, kind) in _MODELS.items():
        write_config(repository / name, _CONFIG.format(tensor=tensor, pipeline=pipeline, kind=kind))
        (repository / name / "1").mkdir()
        (repository / name / "1" / "model.py").write_text(_SOURCE)
        shutil.copyfile(weights, repository / name / "1" / weights.name)
    with server_factory(repository, "--model-control-mode", "explicit", check_exit=False) as started:
        yield started


def infer(client: StockClient, model: str, row: np.ndarray) -> np.ndarray:
    given: np.ndarray = client.infer(model, {"X": row}).as_numpy("Y")
    return given


def processes(server: ServerProcess) -> list[psutil.Process]:
    return psutil.Process(server.pid).children(recursive=True)


def rank_pids(server: ServerProcess) -> list[int]:
    """Of the one model that is in processes of its own; rank 0 first."""
    (first,) = psutil.Process(server.pid).children()
    return [first.pid, *(child.pid for child in sorted(first.children(), key=lambda each: each.create_time()))]


class Caller(threading.Thread):
    """Calls the shared model until it is stopped; every answer has to be that of the whole model."""

    def __init__(self, server: ServerProcess, row: np.ndarray, expected: np.ndarray) -> None:
        super().__init__()
        self._server, self._row, self._expected = server, row, expected
        self.stopped = threading.Event()
        self.answers = 0
        self.wrong: list[np.ndarray] = []
        self.failures: list[str] = []

    def run(self) -> None:
        with closing(StockClient("grpc", self._server)) as client:
            while not self.stopped.is_set():
                try:
                    given = infer(client, "shared", self._row)
                except InferenceServerException as error:
                    self.failures.append(str(error))
                    continue
                self.answers += 1
                if not np.allclose(given, self._expected, rtol=1e-4, atol=1e-5):
                    self.wrong.append(given)


def test_any_rank_may_be_killed_under_load(server: ServerProcess) -> None:
    rows = np.random.default_rng(1).standard_normal((3, 1, 8), np.float32)
    # Over gRPC: the HTTP client waits for a load for 60 s alone.
    with closing(StockClient("grpc", server)) as client:
        client.call("load_model", "whole")
        assert processes(server) == []
        expected = [infer(client, "whole", row) for row in rows]
        client.call("load_model", "shared")
        assert client.call("is_model_ready", "shared")
        # It is ready with all ranks.
        assert len(processes(server)) == 4
        callers = [Caller(server, row, wanted) for row, wanted in zip(rows, expected, strict=True)]
        for caller in callers:
            caller.start()
        try:
            for victim in range(4):
                wait_for(lambda least=callers[0].answers + 5: callers[0].answers >= least, 120)
                pids = rank_pids(server)
                assert len(pids) == 4
                os.kill(pids[victim], signal.SIGKILL)
                for caller in callers:
                    wait_for(lambda each=caller, least=caller.answers + 5: each.answers >= least, 120)
                assert not set(rank_pids(server)) & set(pids)
        finally:
            for caller in callers:
                caller.stopped.set()
            for caller in callers:
                caller.join()
        assert [caller.wrong for caller in callers] == [[], [], []]
        for failure in [failure for caller in callers for failure in caller.failures]:
            assert "was killed by SIGKILL" in failure or "exited with code 1" in failure
        # A request fails at most in the instance that was lost: each caller has one at a time.
        assert all(len(caller.failures) <= 4 for caller in callers)
        client.call("unload_model", "shared")
        wait_for(lambda: processes(server) == [])
    assert server.terminate() == 0


def test_ranks_end_with_a_worker_that_is_killed(server: ServerProcess) -> None:
    with closing(StockClient("grpc", server)) as client:
        client.call("load_model", "shared")
    ranks = processes(server)
    assert len(ranks) == 4
    server.process.kill()
    _, alive = psutil.wait_procs(ranks, timeout=30)
    assert alive == []
