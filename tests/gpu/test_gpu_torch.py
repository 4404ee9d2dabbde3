"""Torch models on a real GPU: graphs, copies, memory, and what cannot be captured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from gpu_models import GROUP, MLP, Indexing, Mlp, Synchronising, context, on_gpu, parameter, script, write

from isochrone.errors import ConfigError, ModelFailed, Unavailable
from isochrone.worker.backends.devices.memory_ledger import Account, Holding, ledger_of
from isochrone.worker.backends.isolation.executable import IsolatedExecutable
from isochrone.worker.backends.torch.backend import load


@pytest.mark.parametrize("graphs", ["", "graphs: false", "graphs: true"])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_answers_are_those_of_the_cpu(tmp_path: Path, graphs: str, rows: int) -> None:
    module = Mlp().eval()
    write(tmp_path, module, torch.zeros(2, 64))
    executable = on_gpu(tmp_path, MLP + (f"optimization {{ cuda {{ {graphs} }} }}" if graphs else ""))
    x = np.random.default_rng(rows).standard_normal((rows, 64), dtype=np.float32)
    with torch.inference_mode():
        exact = module(torch.from_numpy(x)).numpy()
    for _ in range(5):
        np.testing.assert_allclose(executable.execute({"x": x}, None)["y"], exact, rtol=2e-2, atol=2e-2)
    executable.close()


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of torch's own code
@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs"])
def test_half_precision_and_compiled_graphs(tmp_path: Path, mode: str) -> None:
    module = Mlp().eval()
    write(tmp_path, module, torch.zeros(2, 64))
    extra = parameter("dtype", "fp16") + parameter("compile", mode) + parameter("graph_batch_sizes", "4")
    before = children()
    executable = on_gpu(tmp_path, MLP + extra)
    # The processes that compiled have ended.
    assert children() <= before
    x = np.random.default_rng(1).standard_normal((3, 64), dtype=np.float32)
    with torch.inference_mode():
        exact = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(executable.execute({"x": x}, None)["y"], exact, rtol=5e-2, atol=5e-2)
    assert executable.padded_rows == 1
    assert executable.captured_graphs == 1
    executable.close()


def test_the_process_of_an_isolated_model_compiles_and_has_no_process_left(tmp_path: Path) -> None:
    module = Mlp().eval()
    write(tmp_path, module, torch.zeros(2, 64))
    extra = parameter("compile", "max-autotune-no-cudagraphs") + parameter("graph_batch_sizes", "4")
    isolated = load(context(tmp_path, MLP + extra + parameter("isolation", "process")))
    assert isinstance(isolated, IsolatedExecutable)
    try:
        assert isolated.pid is not None
        assert not psutil.Process(isolated.pid).children(recursive=True)
        assert isolated.captured_graphs == 1
        x = np.ones((3, 64), np.float32)
        with torch.inference_mode():
            exact = module(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(isolated.execute({"x": x}, None)["y"], exact, rtol=2e-2, atol=2e-2)
    finally:
        isolated.close()


def test_batches_in_flight_do_not_mix(tmp_path: Path) -> None:
    module = Mlp().eval()
    write(tmp_path, module, torch.zeros(2, 64))
    executable = on_gpu(tmp_path)
    arrays = [np.full((rows, 64), rows / 10, np.float32) for rows in (1, 2, 16, 5, 7)]
    with torch.inference_mode():
        exact = [module(torch.from_numpy(array)).numpy() for array in arrays]
    flights: list[Any] = []
    for turn in range(50):
        array = arrays[turn % len(arrays)]
        flights.append((turn % len(arrays), executable._launch([{"x": array}], [len(array)], [None], len(array), ())))
        if len(flights) == 3:
            number, flight = flights.pop(0)
            found = executable.collect_batch(flight)[0]["y"]
            np.testing.assert_allclose(found, exact[number], rtol=2e-2, atol=2e-2)
    for number, flight in flights:
        np.testing.assert_allclose(executable.collect_batch(flight)[0]["y"], exact[number], rtol=2e-2, atol=2e-2)
    executable.close()


def test_a_model_that_synchronises(tmp_path: Path) -> None:
    script(tmp_path, Synchronising())
    with pytest.raises(ConfigError, match=r"cuda\.graphs: expected false, or a model that can be captured"):
        on_gpu(tmp_path, MLP + "optimization { cuda { graphs: true } }")
    executable = on_gpu(tmp_path, MLP + parameter("graph_batch_sizes", "4"))
    assert executable.graphs is not None
    assert not len(executable.graphs)
    x = np.ones((2, 64), np.float32)
    np.testing.assert_array_equal(executable.execute({"x": x}, None)["y"], x[:, :32] * 2)
    executable.close()
    assert ledger_of("cuda:0").held(Account("m", "1", 0)) == {}


def test_repeated_loads_end_with_the_same_free_memory(tmp_path: Path) -> None:
    write(tmp_path, Mlp(), torch.zeros(2, 64))
    free = []
    for _ in range(int(os.environ.get("LOAD_CYCLES", "12"))):
        executable = on_gpu(tmp_path)
        executable.execute({"x": np.ones((9, 64), np.float32)}, None)
        assert ledger_of("cuda:0").held(Account("m", "1", 0))[Holding.WEIGHTS] > 0
        executable.close()
        free.append(torch.cuda.mem_get_info(0)[0])
    # The first loads also make the context, and the libraries' own memory.
    assert len(set(free[2:])) == 1


def test_a_model_that_does_not_fit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path, Mlp(), torch.zeros(2, 64))
    on_gpu(tmp_path).close()
    total = torch.cuda.mem_get_info(0)[1]
    before = torch.cuda.mem_get_info(0)[0]
    config = MLP + parameter("spare_memory_mib", str(total >> 20))
    with pytest.raises(Unavailable, match=r"does not fit on cuda:0: it needs .* MiB are free"):
        on_gpu(tmp_path, config)
    assert torch.cuda.mem_get_info(0)[0] == before
    assert ledger_of("cuda:0").held(Account("m", "1", 0)) == {}


def test_out_of_memory_in_a_run_fails_it_alone(tmp_path: Path) -> None:
    class Huge(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = int(x.size(0))
            big = torch.empty([rows - 1, 1 << 36], dtype=torch.float32, device=x.device)
            return x[:, :32] + float(big.size(0))

    script(tmp_path, Huge())
    executable = on_gpu(tmp_path, MLP + "optimization { cuda { graphs: false } }")
    with pytest.raises(ModelFailed, match="out of memory"):
        executable.execute({"x": np.ones((3, 64), np.float32)}, None)
    executable.execute({"x": np.ones((1, 64), np.float32)}, None)
    executable.close()


def test_an_illegal_access_costs_an_isolated_model_alone(tmp_path: Path) -> None:
    config = (
        "max_batch_size: 4\n"
        'input { name: "x" data_type: TYPE_INT64 dims: [ 2 ] }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [ 2, 32 ] }\n' + GROUP + parameter("isolation", "process")
    )
    write(tmp_path / "bad", Indexing(), torch.zeros((2, 2), dtype=torch.int64))
    write(tmp_path / "good", Mlp(), torch.zeros(2, 64))
    good = on_gpu(tmp_path / "good", name="good")
    isolated = load(context(tmp_path / "bad", config, "bad"))
    try:
        fine = np.array([[1, 2]])
        exact = isolated.execute({"x": fine}, None)["y"]
        with pytest.raises(ModelFailed, match="lost its device"):
            isolated.execute({"x": np.array([[1, 10**6]])}, None)
        good.execute({"x": np.ones((2, 64), np.float32)}, None)
        np.testing.assert_array_equal(isolated.execute({"x": fine}, None)["y"], exact)
    finally:
        isolated.close()
        good.close()
