"""Models that reserve multiprocessors of a real GPU: their answers, and on which SMs they really run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_models import MLP, Mlp, on_gpu, parameter, write

from isochrone.devices.green_contexts import GreenLibrary
from isochrone.errors import ConfigError
from isochrone.worker.backends.torch.gpu.executable import GpuExecutable

#: A process divides a GPU once: all tests of this file reserve as many.
RESERVED = 16
OPTION = parameter("reserved_sms", str(RESERVED))


def sms_of(stream: Any, *, in_graph: bool) -> set[int]:
    # Where there is no GPU, there is no triton.
    import sm_kernel

    return sm_kernel.sms_of(stream, in_graph=in_graph)


@pytest.fixture
def models(tmp_path: Path) -> Iterator[tuple[GpuExecutable, GpuExecutable]]:
    """One that reserves SMs, and one that does not."""
    write(tmp_path, Mlp(), torch.zeros(2, 64))
    urgent = on_gpu(tmp_path, MLP + OPTION, "urgent")
    patient = on_gpu(tmp_path, MLP, "patient")
    yield urgent, patient
    urgent.close()
    patient.close()


@pytest.mark.parametrize("in_graph", [False, True])
def test_the_parts_share_no_sm(models: tuple[GpuExecutable, GpuExecutable], in_graph: bool) -> None:
    total = GreenLibrary().limits(0).total
    urgent, patient = (sms_of(model.compute_stream, in_graph=in_graph) for model in models)
    assert not urgent & patient
    assert len(urgent) <= RESERVED
    assert RESERVED < len(patient) <= total - RESERVED


@pytest.mark.parametrize(
    "graphs", ["", "optimization { cuda { graphs: false } }", "optimization { cuda { graphs: true } }"]
)
def test_answers_are_right_beside_a_model_that_fills_the_rest(tmp_path: Path, graphs: str) -> None:
    module = Mlp().eval()
    write(tmp_path, module, torch.zeros(2, 64))
    urgent = on_gpu(tmp_path, MLP + OPTION + graphs, "urgent")
    patient = on_gpu(tmp_path, MLP + graphs, "patient")
    x = np.random.default_rng(2).standard_normal((16, 64), dtype=np.float32)
    with torch.inference_mode():
        exact = module(torch.from_numpy(x)).numpy()
    stop = threading.Event()
    failures: list[Exception] = []

    def fill() -> None:
        try:
            while not stop.is_set():
                np.testing.assert_allclose(patient.execute({"x": x}, None)["y"], exact, rtol=2e-2, atol=2e-2)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        for rows in (1, 3, 16) * 20:
            found = urgent.execute({"x": x[:rows]}, None)["y"]
            np.testing.assert_allclose(found, exact[:rows], rtol=2e-2, atol=2e-2)
    finally:
        stop.set()
        thread.join()
        urgent.close()
        patient.close()
    assert not failures


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of torch's own code
def test_compiled_kernels_run_there_too(tmp_path: Path) -> None:
    module = Mlp().eval()
    write(tmp_path, module, torch.zeros(2, 64))
    extra = OPTION + parameter("compile", "max-autotune-no-cudagraphs") + parameter("graph_batch_sizes", "4")
    executable = on_gpu(tmp_path, MLP + extra)
    assert executable.captured_graphs == 1
    x = np.ones((3, 64), np.float32)
    with torch.inference_mode():
        exact = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(executable.execute({"x": x}, None)["y"], exact, rtol=2e-2, atol=2e-2)
    assert executable.padded_rows == 1
    executable.close()


def test_loads_and_unloads_end_with_the_same_free_memory(tmp_path: Path) -> None:
    write(tmp_path, Mlp(), torch.zeros(2, 64))
    free = []
    for _ in range(8):
        urgent, patient = on_gpu(tmp_path, MLP + OPTION, "urgent"), on_gpu(tmp_path, MLP, "patient")
        for executable in (urgent, patient):
            executable.execute({"x": np.ones((9, 64), np.float32)}, None)
            executable.close()
        free.append(torch.cuda.mem_get_info(0)[0])
    assert len(set(free[2:])) == 1


def test_without_such_a_model_others_have_all_sms_again(tmp_path: Path) -> None:
    write(tmp_path, Mlp(), torch.zeros(2, 64))
    total = GreenLibrary().limits(0).total
    urgent, confined = on_gpu(tmp_path, MLP + OPTION, "urgent"), on_gpu(tmp_path, MLP, "confined")
    assert len(sms_of(confined.compute_stream, in_graph=False)) <= total - RESERVED
    urgent.close()
    free = on_gpu(tmp_path, MLP, "free")
    assert len(sms_of(free.compute_stream, in_graph=False)) > total - RESERVED
    free.close()
    confined.close()


@pytest.mark.parametrize(
    ("value", "expected"), [("13", "a multiple of"), ("100000", "a multiple of"), ("many", "an integer")]
)
def test_wrong_counts_are_rejected(tmp_path: Path, value: str, expected: str) -> None:
    write(tmp_path, Mlp(), torch.zeros(2, 64))
    with pytest.raises(
        ConfigError, match=rf"reserved_sms.*expected ({expected}|{RESERVED}, as GPU 0 has been divided)"
    ):
        on_gpu(tmp_path, MLP + parameter("reserved_sms", value))
