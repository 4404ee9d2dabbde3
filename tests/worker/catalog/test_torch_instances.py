"""Torch models with several instances and kinds, from their configuration to the metrics of their memory.

The GPU is the CPU, behind the interface of a device; everything else is as on a GPU.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from queued_requests import RecordedRequest
from runner_bench import until
from structlog.testing import capture_logs

from isochrone.clock import now_ns
from isochrone.errors import ConfigError, IsochroneError, ModelFailed
from isochrone.models.repository.repository import Repository
from isochrone.observe import logs
from isochrone.observe.metrics.exposition import Exposition
from isochrone.protocol.messages import Plan
from isochrone.worker.backends.torch import backend
from isochrone.worker.backends.torch.backend import TorchExecutable
from isochrone.worker.backends.torch.gpu import loading
from isochrone.worker.backends.torch.gpu.device import HostDevice
from isochrone.worker.backends.torch.gpu.executable import GpuExecutable
from isochrone.worker.catalog import loading as catalog_loading
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.service import WorkerService
from sample_models import write_config

#: The ledger of this file's device: other tests use that of "cpu".
DEVICE = "cpu:7"
MODEL = """
    backend: "pytorch"
    max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
    output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
"""
ON_GPU, ON_CPU = "instance_group { kind: KIND_GPU count: 1 }\n", "instance_group { kind: KIND_CPU count: 1 }\n"
TWO_ON_GPU = "instance_group { kind: KIND_GPU gpus: [ 0 ] count: 2 }\n"


class Scaled(torch.nn.Module):  # type: ignore[misc]
    """Weights of 12 bytes. Raises for zeros, if it is told to: those of the warm-up."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.factors = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.raises = raises

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.raises and bool((x == 0).all()):
            raise RuntimeError("zeros")
        return x * self.factors


class Gpu(HostDevice):
    name = DEVICE

    def __init__(self, torch: Any, index: int, **_: Any) -> None:
        super().__init__(torch)

    def capture(self, run: Any, stream: Any, pool: Any, warm_runs: int = 3) -> Any:
        if self.cannot_capture:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        return super().capture(run, stream, pool)

    cannot_capture = False


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[Gpu]:
    monkeypatch.setattr(backend, "gpu_of", lambda context, torch: context.gpu)
    monkeypatch.setattr(loading, "CudaDevice", Gpu)
    monkeypatch.setattr(Gpu, "cannot_capture", False)
    return Gpu


def write_model(repository: Path, text: str, *, raises: bool = False) -> None:
    write_config(repository / "m", MODEL + text)
    (repository / "m" / "1").mkdir(parents=True)
    with warnings.catch_warnings():
        # TorchScript is deprecated.
        warnings.simplefilter("ignore")
        torch.jit.script(Scaled(raises)).save(str(repository / "m" / "1" / "model.pt"))


def run(repository: Path, scenario: Callable[[Catalog], Awaitable[None]]) -> None:
    async def play() -> None:
        catalog = Catalog(Repository([repository]), None, 30)
        try:
            await scenario(catalog)
        finally:
            await catalog.close(5)

    asyncio.run(asyncio.wait_for(play(), 100))


async def ask(catalog: Catalog, requests: int) -> list[Any]:
    """The answers to requests that are sent together, each of one row."""
    sent = []
    for number in range(1, requests + 1):
        plan = Plan("m", "", (("x", "FP32", (1, 3)),), None)
        sent.append(RecordedRequest(plan, {"x": np.full((1, 3), number, np.float32)}, now_ns()))
        catalog.find("m", "").submit(sent[-1])
    await until(lambda: all(request.answers for request in sent))
    answers = [request.answers[0] for request in sent]
    assert not [answer for answer in answers if isinstance(answer, IsochroneError)]
    return [answer["y"].tolist() for answer in answers]


def exact(requests: int) -> list[Any]:
    return [[[number, 2 * number, 3 * number]] for number in range(1, requests + 1)]


def instances(catalog: Catalog) -> list[Any]:
    return list(catalog.find("m", "").runner.instances)


def metrics_page(catalog: Catalog) -> list[str]:
    settings = logs.Settings(logging.NullHandler(), 0)
    service = WorkerService(
        catalog, settings, server_name="t", allow_shared_memory=False, allow_control=True, strict_readiness=True
    )
    body, _ = Exposition(lambda: service.snapshot()).render()
    return body.decode().splitlines()


def memory(catalog: Catalog) -> dict[tuple[str, str], float]:
    """(instance, holding) → bytes, as the metrics page shows them."""
    found = {}
    for line in metrics_page(catalog):
        if line.startswith("isochrone_device_memory_bytes{") and f'device="{DEVICE}"' in line:
            labels, _, value = line.partition("{")[2].rpartition("} ")
            pairs = dict(label.replace('"', "").split("=") for label in labels.split(","))
            found[pairs["instance"], pairs["holding"]] = float(value)
    return found


@pytest.mark.parametrize("order", [ON_GPU + ON_CPU, ON_CPU + ON_GPU])
def test_instances_of_both_kinds_answer_alike(tmp_path: Path, gpu: type[Gpu], order: str) -> None:
    write_model(tmp_path, order)

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("m")
        executables = [instance.executable for instance in instances(catalog)]
        kinds = [GpuExecutable, TorchExecutable] if order.startswith(ON_GPU) else [TorchExecutable, GpuExecutable]
        assert [type(executable) for executable in executables] == kinds
        for executable in executables:
            inputs = {"x": np.full((2, 3), 5, np.float32)}
            assert executable.execute(inputs, None)["y"].tolist() == [[5, 10, 15]] * 2
        for _ in range(5):
            assert await ask(catalog, 8) == exact(8)
        on_gpu = str(kinds.index(GpuExecutable))
        assert {instance for instance, _ in memory(catalog)} == {on_gpu}
        await catalog.unload("m")
        assert memory(catalog) == {}

    run(tmp_path, scenario)


def test_a_replacement_is_of_the_kind_of_the_one_it_replaces(tmp_path: Path, gpu: type[Gpu]) -> None:
    write_model(tmp_path, ON_GPU + ON_CPU)
    prepared = catalog_loading.prepare(Repository([tmp_path]).read("m"), 1)
    for number, executable in enumerate(prepared.executables):
        again = catalog_loading.load_again(prepared, number)
        assert type(again) is type(executable)
        again.close()
        executable.close()


@pytest.mark.parametrize("groups", [ON_CPU, ON_CPU + TWO_ON_GPU])
def test_what_reshape_costs_a_model_on_a_gpu_is_logged_once(tmp_path: Path, gpu: type[Gpu], groups: str) -> None:
    write_model(tmp_path, groups)

    def warnings_at_load() -> int:
        with capture_logs() as lines:
            prepared = catalog_loading.prepare(Repository([tmp_path]).read("m"), 1)
        (declared,) = prepared.description.signature.inputs
        for executable in prepared.executables:
            inputs = {"x": np.ones((2, *declared.dims), np.float32)}
            assert executable.execute(inputs, None)["y"].tolist() == [[1, 2, 3]] * 2
            executable.close()
        return sum(line["event"].startswith("reshape:") for line in lines)

    assert warnings_at_load() == 0
    reshaping = MODEL.replace("dims: [ 3 ] }", "dims: [ 1, 3 ] reshape { shape: [ 3 ] } }", 1)
    write_config(tmp_path / "m", reshaping + groups)
    assert warnings_at_load() == (groups != ON_CPU)


def test_both_kinds_without_a_gpu_say_which_one_is_missing(tmp_path: Path) -> None:
    write_model(tmp_path, ON_CPU + ON_GPU)

    async def scenario(catalog: Catalog) -> None:
        with pytest.raises(ConfigError) as refused:
            await catalog.load("m")
        assert refused.value.key == "instance_group.kind"
        assert refused.value.given == "GPU 0"
        assert "To run on the CPU, change it to KIND_CPU" in refused.value.expected

    run(tmp_path, scenario)


def test_several_instances_on_one_gpu_have_their_own_memory(tmp_path: Path, gpu: type[Gpu]) -> None:
    write_model(tmp_path, TWO_ON_GPU)

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("m")
        for _ in range(5):
            assert await ask(catalog, 8) == exact(8)
        # Four slots, of an input and an output of four rows of twelve bytes.
        expected = {"weights": 12, "graphs": 0, "slots": 4 * 2 * 4 * 12}
        assert memory(catalog) == {
            (number, holding): size for number in ("0", "1") for holding, size in expected.items()
        }
        await catalog.unload("m")
        assert memory(catalog) == {}

    run(tmp_path, scenario)


@pytest.mark.parametrize("reshapes", [False, True])
@pytest.mark.parametrize(("cannot_capture", "graphs"), [(False, "6.0"), (True, "0.0")])
def test_the_metrics_count_the_graphs_of_all_instances(
    tmp_path: Path, gpu: type[Gpu], reshapes: bool, cannot_capture: bool, graphs: str
) -> None:
    """For batches of 4, 2 and 1."""
    write_model(tmp_path, TWO_ON_GPU)
    if reshapes:
        reshaping = MODEL.replace("dims: [ 3 ] }", "dims: [ 1, 3 ] reshape { shape: [ 3 ] } }", 1)
        write_config(tmp_path / "m", reshaping + TWO_ON_GPU)
    gpu.cannot_capture = cannot_capture

    async def scenario(catalog: Catalog) -> None:
        await catalog.load("m")
        assert f'isochrone_captured_graphs{{model="m",version="1"}} {graphs}' in metrics_page(catalog)

    run(tmp_path, scenario)


def test_a_warm_up_that_fails_leaves_no_memory_in_the_metrics(tmp_path: Path, gpu: type[Gpu]) -> None:
    write_model(tmp_path, TWO_ON_GPU + "optimization { cuda { graphs: false } }", raises=True)

    async def scenario(catalog: Catalog) -> None:
        with pytest.raises(ModelFailed, match="automatic warm-up, with zeros as inputs, failed"):
            await catalog.load("m")
        assert memory(catalog) == {}

    run(tmp_path, scenario)


@pytest.mark.parametrize("stage", ["capture", "slots", "weights"])
def test_a_load_that_fails_leaves_no_memory_in_the_metrics(
    tmp_path: Path, gpu: type[Gpu], monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """The second instance fails: the first one goes, too."""
    write_model(tmp_path, TWO_ON_GPU)
    calls: list[int] = []
    method = {"capture": "capture", "slots": "device_bytes", "weights": "memory"}[stage]
    real = getattr(Gpu, method)
    enough = {"capture": 13, "slots": 9, "weights": 1}[stage]

    def fail(self: Gpu, *arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) > enough:
            if stage == "weights":
                return 100, 1 << 30
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return real(self, *arguments, **named)

    monkeypatch.setattr(Gpu, method, fail)

    async def scenario(catalog: Catalog) -> None:
        with pytest.raises(IsochroneError, match=f"does not fit on {DEVICE}"):
            await catalog.load("m")
        assert memory(catalog) == {}
        assert len(calls) > enough
        monkeypatch.setattr(Gpu, method, real)
        await catalog.load("m")
        assert {instance for instance, _ in memory(catalog)} == {"0", "1"}

    run(tmp_path, scenario)


def test_a_model_that_cannot_be_captured_comes_and_goes(
    tmp_path: Path, gpu: type[Gpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, ON_GPU)
    monkeypatch.setattr(Gpu, "cannot_capture", True)

    async def scenario(catalog: Catalog) -> None:
        for _ in range(3):
            await catalog.load("m")
            assert await ask(catalog, 4) == exact(4)
            assert memory(catalog)["0", "graphs"] == 0
            await catalog.unload("m")
            assert memory(catalog) == {}

    run(tmp_path, scenario)
