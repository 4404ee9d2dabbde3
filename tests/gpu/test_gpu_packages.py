"""AOTInductor packages on a real GPU: in a process of their own, or inside the worker."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from gpu_models import MLP, ROWS, context, parameter

from isochrone.errors import IsochroneError
from isochrone.worker.backends.devices.memory_ledger import Account, Holding, ledger_of
from isochrone.worker.backends.isolation.executable import IsolatedExecutable
from isochrone.worker.backends.torch.backend import load

OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has …")
ISOLATED = MLP.replace('name: "x"', 'name: "x__0"') + parameter("graph_batch_sizes", "4")


def free_bytes() -> int:
    """Of the GPU, whichever process holds the rest."""
    return int(torch.cuda.mem_get_info(0)[0])


def held(instance: int = 0, model: str = "m") -> dict[Holding, int]:
    return ledger_of("cuda:0").held(Account(model, "1", instance))


class Wide(torch.nn.Module):  # type: ignore[misc]
    """64 MiB of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(64, 1 << 17), torch.nn.Linear(1 << 17, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x))[:, :32]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "model.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = torch.zeros(2, 64, device="cuda")
        program = torch.export.export(Wide().eval().cuda(), (example,), dynamic_shapes=({0: ROWS},))
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    torch._inductor.async_compile.shutdown_compile_workers()
    del program
    gc.collect()
    torch.cuda.empty_cache()
    return path.parent


def loaded(package: Path, config: str = ISOLATED) -> IsolatedExecutable:
    executable = load(context(package, config, "package"))
    assert isinstance(executable, IsolatedExecutable)
    return executable


def test_a_package_has_a_process_of_its_own_unless_the_configuration_says_otherwise(package: Path) -> None:
    executable = loaded(package)
    try:
        assert executable.captured_graphs == 1
        assert executable.execute({"x__0": np.ones((3, 64), np.float32)}, None)["y"].shape == (3, 32)
        assert held(0, "package") == {}
    finally:
        executable.close()


def test_memory_of_an_isolated_package_is_given_back(package: Path) -> None:
    free = []
    for _ in range(3):
        before = free_bytes()
        executable = loaded(package)
        assert before - free_bytes() > 64 << 20
        executable.execute({"x__0": np.ones((3, 64), np.float32)}, None)
        executable.close()
        free.append(free_bytes())
    assert len(set(free)) == 1


def test_an_isolated_package_that_does_not_fit_is_not_loaded(package: Path) -> None:
    before, total = torch.cuda.mem_get_info(0)
    with pytest.raises(IsochroneError, match=r"needs 6\d MiB \(weights 6\d MiB\)"):
        loaded(package, ISOLATED + parameter("spare_memory_mib", str(total >> 20)))
    assert free_bytes() == before


@pytest.mark.parametrize("check", ["counted_and_given_back", "does_not_fit"])
def test_memory_of_a_package_inside_the_worker(package: Path, check: str) -> None:
    child = Path(__file__).with_name("package_child.py")
    result = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(child), check, str(package)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stderr
