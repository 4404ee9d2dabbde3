"""Parallel instances with real ranks: their answers are those of one process, and their errors cost what they must."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from config_text import parameter
from load_contexts import MakeContext
from parallel_models import ENCODER, ENCODER_CONFIG, MLP, MLP_CONFIG, ranks, write_model
from started_executables import started

from isochrone.errors import ConfigError, ModelFailed
from isochrone.worker.backends.isolation.executable import IsolatedExecutable
from isochrone.worker.backends.torch.backend import load

pytestmark = pytest.mark.usefixtures("nothing_leaks")


def start(make_context: MakeContext, config: str) -> IsolatedExecutable:
    executable = load(make_context(config))
    assert isinstance(executable, IsolatedExecutable)
    return started(executable)


def rank_pids(executable: IsolatedExecutable) -> list[int]:
    """Of rank 0, then of the others in the order of their start."""
    assert executable.pid is not None
    others = sorted(psutil.Process(executable.pid).children(), key=lambda child: child.create_time())
    return [executable.pid, *(child.pid for child in others)]


def kill(pid: int) -> None:
    """Returns when the process has ended."""
    death = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([death], [], [])
    os.close(death)


def samples(rows: int, seed: int = 3) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    return {"x": generator.standard_normal((rows, 8), np.float32)}


def token_samples(rows: int, seed: int = 3) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    return {
        "ids": generator.integers(0, 50, (rows, 6)),
        "scale": generator.uniform(0.5, 2, (rows, 6)).astype(np.float32),
    }


def expected(module: Any, inputs: dict[str, Any]) -> Any:
    with torch.no_grad():
        first, *others = module
        value = first(*(torch.from_numpy(array) for array in inputs.values()))
        for child in others:
            value = child(value)
    return value


def test_two_ranks_answer_as_one_process(tmp_path: Path, make_context: MakeContext) -> None:
    module = write_model(tmp_path)
    executable = start(make_context, MLP_CONFIG + ranks(2, 1))
    for rows in (1, 5):
        given = executable.execute(samples(rows), None)["y"]
        np.testing.assert_allclose(given, expected(module, samples(rows)).numpy(), rtol=1e-5, atol=1e-6)
    pids = rank_pids(executable)
    assert len(pids) == 2
    executable.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.long
@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 2), (2, 2), (2, 1), (1, 3), (4, 1)])
def test_an_encoder_answers_as_in_one_process(
    tmp_path: Path, make_context: MakeContext, tensor: int, pipeline: int
) -> None:
    module = write_model(tmp_path, ENCODER)
    executable = start(make_context, ENCODER_CONFIG + ranks(tensor, pipeline))
    assert len(rank_pids(executable)) == tensor * pipeline
    for rows in (1, 2, 7, 16, 3):
        inputs = token_samples(rows, seed=rows)
        given, wanted = executable.execute(inputs, None), expected(module, inputs)
        assert list(given) == ["scores", "total"]
        for name, array in given.items():
            np.testing.assert_allclose(array, wanted[name].numpy(), rtol=1e-4, atol=1e-5)
    assert list(executable.execute(inputs, ("total",))) == ["total"]
    executable.close()
