"""Memory of a real GPU: after loads that fail, of several instances, of packages; instances of both kinds."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_models import GROUP, MLP, TENSORS, Mlp, Synchronising, on_gpu, parameter, script, write

from isochrone.errors import ModelFailed, Unavailable
from isochrone.models.repository.repository import Repository
from isochrone.worker.backends.devices.memory_ledger import Account, Holding, ledger_of
from isochrone.worker.backends.torch.backend import TorchExecutable
from isochrone.worker.backends.torch.files import load_file
from isochrone.worker.backends.torch.gpu import loading
from isochrone.worker.backends.torch.gpu.device import CudaDevice
from isochrone.worker.backends.torch.gpu.executable import GpuExecutable
from isochrone.worker.catalog.loading import prepare

OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has …")


def free_bytes() -> int:
    return int(torch.cuda.mem_get_info(0)[0])


def held(instance: int = 0, model: str = "m") -> dict[Holding, int]:
    return ledger_of("cuda:0").held(Account(model, "1", instance))


@pytest.fixture
def settled(tmp_path: Path) -> Path:
    """A model, loaded and unloaded until its libraries have allocated what they keep."""
    write(tmp_path, Mlp(), torch.zeros(2, 64))
    for _ in range(3):
        executable = on_gpu(tmp_path)
        executable.execute({"x": np.ones((9, 64), np.float32)}, None)
        executable.close()
    return tmp_path


@pytest.mark.parametrize("stage", ["weights", "slots", "capture", "second capture"])
def test_a_load_that_fails_gives_its_memory_back(settled: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    before = free_bytes()
    calls: list[int] = []

    def fail_at(number: int, real: Any) -> Any:
        def method(*arguments: Any, **named: Any) -> Any:
            calls.append(1)
            if len(calls) == number:
                raise OUT_OF_MEMORY
            return real(*arguments, **named)

        return method

    with monkeypatch.context() as patch:
        if stage == "weights":  # they are on the device by then
            patch.setattr(loading, "run_mode", fail_at(1, loading.run_mode))
        elif stage == "slots":
            patch.setattr(CudaDevice, "device_bytes", fail_at(5, CudaDevice.device_bytes))
        else:
            number = 1 if stage == "capture" else 9
            patch.setattr(CudaDevice, "capture", fail_at(number, CudaDevice.capture))
        with pytest.raises(Unavailable, match="does not fit on cuda:0"):
            on_gpu(settled)
    assert calls
    assert free_bytes() == before
    assert held() == {}
    executable = on_gpu(settled)
    executable.execute({"x": np.ones((3, 64), np.float32)}, None)
    executable.close()
    assert free_bytes() == before


def test_a_program_that_was_exported_on_the_gpu_is_read_to_the_cpu(tmp_path: Path) -> None:
    """Its 64 MiB of weights are there only once they are moved, after the ledger has agreed."""
    layer = torch.nn.Linear(4096, 4096, device="cuda").eval()
    program = torch.export.export(layer, (torch.zeros(2, 4096, device="cuda"),))
    torch.export.save(program, tmp_path / "model.pt2")
    allocated = torch.cuda.memory_allocated()
    file = load_file(torch, tmp_path / "model.pt2")
    assert torch.cuda.memory_allocated() == allocated
    assert file.to_device is not None
    moved = file.to_device("cuda:0")
    assert torch.cuda.memory_allocated() >= allocated + (64 << 20)
    x = torch.ones(2, 4096, device="cuda")
    torch.testing.assert_close(moved(x), layer(x))


def repository(directory: Path, config: str) -> Path:
    (directory / "m").mkdir()
    (directory / "m" / "config.pbtxt").write_text('backend: "pytorch"\n' + config)
    return directory


class NotZeros(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == 0).all()):
            raise RuntimeError("zeros")
        return x[:, :32]


def test_a_warm_up_that_fails_gives_its_memory_back(settled: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = repository(tmp_path_factory.mktemp("models"), MLP + "optimization { cuda { graphs: false } }")
    script(path / "m" / "1", NotZeros())
    free = []
    for _ in range(3):
        with pytest.raises(ModelFailed, match="automatic warm-up, with zeros as inputs, failed"):
            prepare(Repository([path]).read("m"), 1)
        assert held() == {}
        free.append(free_bytes())
    assert free[1] == free[2]


def test_a_model_that_synchronises_comes_and_goes_without_a_trace(settled: Path) -> None:
    script(settled / "other", Synchronising())
    free = []
    for _ in range(6):
        executable = on_gpu(settled / "other", MLP + parameter("graph_batch_sizes", "4"), "other")
        assert executable.graphs is not None
        assert not len(executable.graphs)
        executable.execute({"x": np.ones((2, 64), np.float32)}, None)
        executable.close()
        # One that can be captured, in the same process.
        captured = on_gpu(settled)
        captured.execute({"x": np.ones((2, 64), np.float32)}, None)
        captured.close()
        free.append(free_bytes())
    assert len(set(free[2:])) == 1


def test_a_gpu_that_is_lost_fails_every_batch_in_flight(tmp_path: Path) -> None:
    child = Path(__file__).with_name("lost_gpu_child.py")
    result = subprocess.run(
        [sys.executable, str(child), str(tmp_path)], capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stderr
    # Between lines of the log.
    report = json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))
    # The first batch may have ended before the assertion failed.
    assert report["came"][0] in ("answered", "lost")
    assert report["came"][1:3] == ["lost", "lost"], result.stderr
    assert report["is_lost"]
    assert report["held"] == 0


def exact(x: Any) -> Any:
    with torch.inference_mode():
        return Mlp().eval()(torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("is_gpu_first", [True, False])
def test_instances_of_both_kinds(tmp_path: Path, is_gpu_first: bool) -> None:
    on_cpu = "instance_group { kind: KIND_CPU count: 1 }\n"
    path = repository(tmp_path, TENSORS + (GROUP + on_cpu if is_gpu_first else on_cpu + GROUP))
    write(path / "m" / "1", Mlp(), torch.zeros(2, 64))
    executables = prepare(Repository([path]).read("m"), 1).executables
    kinds = [GpuExecutable, TorchExecutable] if is_gpu_first else [TorchExecutable, GpuExecutable]
    assert [type(executable) for executable in executables] == kinds
    x = np.random.default_rng(5).standard_normal((3, 64), dtype=np.float32)
    for executable in executables:
        np.testing.assert_allclose(executable.execute({"x": x}, None)["y"], exact(x), rtol=2e-2, atol=2e-2)
    assert held(kinds.index(GpuExecutable))[Holding.WEIGHTS] > 0
    assert held(kinds.index(TorchExecutable)) == {}
    for executable in executables:
        executable.close()
    assert not [account for account, _, _ in ledger_of("cuda:0") if account.model == "m"]


def test_several_instances_on_one_gpu(settled: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = repository(tmp_path_factory.mktemp("models"), TENSORS + GROUP.replace("count: 1", "count: 2"))
    write(path / "m" / "1", Mlp(), torch.zeros(2, 64))
    free = []
    for _ in range(4):
        executables = prepare(Repository([path]).read("m"), 1).executables
        # The first one to capture pays for what libraries keep.
        for holding in (Holding.WEIGHTS, Holding.SLOTS):
            assert held(0)[holding] == held(1)[holding]
        assert held(0)[Holding.WEIGHTS] == 4 * (64 * 256 + 256 + 256 * 32 + 32)
        arrays = [np.full((rows, 64), rows / 10, np.float32) for rows in (1, 5, 16)]
        launched = [
            (executable, array, executable._launch([{"x": array}], [len(array)], [None], len(array), ()))
            for array in arrays
            for executable in executables
            if isinstance(executable, GpuExecutable)
        ]
        assert len(launched) == 6
        for executable, array, flight in launched:
            found = executable.collect_batch(flight)[0]["y"]
            np.testing.assert_allclose(found, exact(array), rtol=2e-2, atol=2e-2)
        for executable in executables:
            executable.close()
        free.append(free_bytes())
    assert len(set(free[2:])) == 1


def graph_bytes(executable: GpuExecutable) -> tuple[int, int]:
    """The results of all graphs, which are kept side by side; and the inputs of the largest, which the others share."""
    assert executable.graphs is not None
    found = [executable.graphs.graph_for(rows, (("x", (64,)),)) for rows in range(1, 17)]
    by_rows = {graph.rows: graph for graph in found if graph is not None}
    assert len(by_rows) == len(executable.graphs) > 1
    inputs = by_rows[16].inputs.values()
    return sum(graph.result_bytes for graph in by_rows.values()), sum(each.nbytes for each in inputs)


def test_graphs_of_two_models_are_counted_apart(settled: Path) -> None:
    executables: dict[str, GpuExecutable] = {}
    counted: dict[str, int] = {}
    for name in ("first", "second"):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(0)
        executables[name] = on_gpu(settled, MLP, name)
        grown = torch.cuda.memory_reserved(0) - before
        counted[name] = held(0, name)[Holding.GRAPHS]
        results, inputs = graph_bytes(executables[name])
        assert counted[name] >= results + inputs
        # The inputs may be in memory that was reserved before; the pool of the graphs is not.
        assert counted[name] - inputs <= grown
    assert held(0, "first")[Holding.GRAPHS] == counted["first"]
    executables["second"].close()
    assert held(0, "second") == {}
    assert held(0, "first")[Holding.GRAPHS] == counted["first"]
    executables["first"].close()
    assert held(0, "first") == {}
