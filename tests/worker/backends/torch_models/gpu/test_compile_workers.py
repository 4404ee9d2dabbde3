"""The processes that compile a model end with its load. Needs a C++ compiler; the processes are real."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from compiling_loader import compiling_as_on_a_gpu
from host_models import BATCHED, Affine, context_of, loaded

from isochrone.worker.backends.isolation.executable import IsolatedExecutable
from isochrone.worker.backends.isolation.sent_context import sent_context
from isochrone.worker.backends.torch.gpu.compile_workers import COMPILE_WORKERS, CompileWorkers

COMPILED = (
    BATCHED
    + 'parameters { key: "compile" value { string_value: "max-autotune-no-cudagraphs" } }\n'
    + 'parameters { key: "graph_batch_sizes" value { string_value: "2" } }\n'
)

# torch's compiler warns of torch's own code.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


class Scaled(torch.nn.Module):  # type: ignore[misc]
    """A factor in its code: each is compiled anew."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, :2] * self.factor, x.sum(1, keepdim=True)


@pytest.fixture(autouse=True)
def pools_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    with compiling_as_on_a_gpu() as started:
        yield started


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def pipes() -> set[str]:
    """The pipes that this process holds open."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {link for link in links if link.startswith("pipe:")}


def answer(executable: Any, value: float) -> list[float]:
    result = executable.execute({"x": np.full((2, 3), value, np.float32)}, None)
    return [float(number) for number in result["y"].ravel()]


def test_no_process_is_left_after_a_compiled_load_nor_after_the_next(pools_started: list[Any]) -> None:
    before, pipes_before = children(), pipes()
    for count in (1, 2):
        executable = loaded(COMPILED, Scaled(count))
        assert len(pools_started) == count
        assert all(pool.process.poll() is not None for pool in pools_started)
        assert children() <= before
        assert answer(executable, 2.0) == [2.0 * count] * 4
        executable.close()
    assert pipes() == pipes_before


def test_a_load_that_fails_leaves_no_process(pools_started: list[Any]) -> None:
    class OneRow(Affine):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.layer(x)[:1], x.sum(1, keepdim=True)

    before = children()
    with pytest.raises(Exception, match="output 'y': expected 2 rows"):
        loaded(COMPILED, OneRow())
    assert pools_started
    assert children() <= before


def test_loads_at_the_same_time_share_the_processes_until_the_last_one(pools_started: list[Any]) -> None:
    before = children()
    first = loaded(COMPILED, Scaled(2))
    assert children() <= before
    with COMPILE_WORKERS.needed():
        results: dict[int, list[float]] = {}

        def load(factor: int) -> None:
            executable = loaded(COMPILED, Scaled(factor), name=f"m{factor}")
            results[factor] = answer(executable, 1.0)
            executable.close()

        threads = [threading.Thread(target=load, args=(factor,)) for factor in (3, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {3: [3.0] * 4, 5: [5.0] * 4}
        assert len(pools_started) == 2
        assert pools_started[1].process.poll() is None
    assert pools_started[1].process.poll() is not None
    assert children() <= before
    assert answer(first, 3.0) == [6.0] * 4
    first.close()


def test_processes_that_somebody_else_started_are_left_alone(pools_started: list[Any]) -> None:
    compiled = torch.compile(torch.nn.Linear(3, 2), dynamic=False)
    compiled(torch.zeros(2, 3))
    (pool,) = pools_started
    loaded(COMPILED, Scaled(7)).close()
    assert pool.process.poll() is None


def test_without_a_compilation_there_is_nothing_to_end() -> None:
    workers = CompileWorkers()
    with workers.needed(), workers.needed():
        pass


def test_the_process_of_an_isolated_instance_has_none_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")
    context = dataclasses.replace(context_of(COMPILED), gpu=None)
    executable = IsolatedExecutable(context, "compiling_loader", sent_context(context))
    try:
        assert executable.pid is not None
        assert psutil.Process(executable.pid).children(recursive=True) == []
        assert executable.captured_graphs == 1
        assert answer(executable, 1.0) == [4.0] * 4
    finally:
        executable.close()
