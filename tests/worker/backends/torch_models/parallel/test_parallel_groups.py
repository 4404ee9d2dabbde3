"""Parallel instances with real ranks: their answers are those of one process, and their errors cost what they must."""

from __future__ import annotations

import os
import re
import select
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from config_text import parameter
from load_contexts import MakeContext
from parallel_models import ENCODER, ENCODER_CONFIG, MLP, MLP_CONFIG, TOUCHY, ranks, write_model
from started_executables import started
from structlog.testing import capture_logs

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


@pytest.mark.long
def test_one_rank_may_have_a_process_of_its_own(tmp_path: Path, make_context: MakeContext) -> None:
    module = write_model(tmp_path)
    executable = start(make_context, MLP_CONFIG + ranks(1, 1) + parameter("isolation", "process"))
    assert len(rank_pids(executable)) == 1
    given = executable.execute(samples(3), None)["y"]
    np.testing.assert_allclose(given, expected(module, samples(3)).numpy(), rtol=1e-5, atol=1e-6)
    executable.close()


@pytest.mark.long
def test_styles_of_torch_answer_as_one_process(tmp_path: Path, make_context: MakeContext) -> None:
    plan = """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
tensor_parallel_plan = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
"""
    module = write_model(tmp_path, MLP + plan)
    executable = start(make_context, MLP_CONFIG + ranks(2, 1))
    for rows in (1, 16):
        given = executable.execute(samples(rows), None)["y"]
        np.testing.assert_allclose(given, expected(module, samples(rows)).numpy(), rtol=1e-5, atol=1e-6)
    executable.close()


@pytest.mark.long
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2), (2, 2)])
def test_ranks_that_fail_alike_cost_no_process_and_others_the_whole_instance(
    tmp_path: Path, make_context: MakeContext, tensor: int, pipeline: int
) -> None:
    write_model(tmp_path, TOUCHY)
    executable = start(make_context, MLP_CONFIG + ranks(tensor, pipeline))
    good = executable.execute(samples(4), None)["y"].copy()
    pids = rank_pids(executable)
    for row in (0, 3, 1):
        bad = samples(4)
        bad["x"][row, 2] = np.nan
        with pytest.raises(ModelFailed, match="model 'm' version 1: torch: not a number"):
            executable.execute(bad, None)
        np.testing.assert_array_equal(executable.execute(samples(4), None)["y"], good)
    assert rank_pids(executable) == pids
    bad = samples(4)
    bad["x"] *= np.float32(1e15)
    last = tensor * pipeline - 1
    with pytest.raises(ModelFailed, match=f"too large in rank {last}"):
        executable.execute(bad, None)
    np.testing.assert_array_equal(executable.execute(samples(4), None)["y"], good)
    # Where a stage is one rank, no other can be out of step with it.
    assert (rank_pids(executable) == pids) == (tensor == 1)
    executable.close()


@pytest.mark.long
@pytest.mark.parametrize("victim", range(4))
def test_the_death_of_any_rank_ends_the_instance_which_starts_again_as_a_whole(
    tmp_path: Path, make_context: MakeContext, victim: int
) -> None:
    module = write_model(tmp_path)
    executable = start(make_context, MLP_CONFIG + ranks(2, 2))
    wanted = expected(module, samples(5)).numpy()
    pids = rank_pids(executable)
    kill(pids[victim])
    # Between two calls: the next one finds it, and starts the ranks again; or it comes in time to see it fail.
    said = ""
    try:
        given = executable.execute(samples(5), None)["y"]
    except ModelFailed as error:
        said = str(error)
        given = executable.execute(samples(5), None)["y"]
    assert not said or "was killed by SIGKILL" in said or "exited with code 1" in said
    np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-6)
    again = rank_pids(executable)
    assert len(again) == 4
    assert not set(again) & set(pids)
    executable.close()


@pytest.mark.long
def test_the_death_of_a_rank_of_an_idle_instance_is_named_and_starts_it_again(
    tmp_path: Path, make_context: MakeContext
) -> None:
    module = write_model(tmp_path)
    executable = start(make_context, MLP_CONFIG + ranks(1, 2))
    pids = rank_pids(executable)
    with capture_logs() as lines:
        kill(pids[1])
        ends = time.monotonic() + 240
        while not executable.is_available() or executable.pid in (None, pids[0]):
            assert time.monotonic() < ends
            time.sleep(0.01)
    ended = "between two calls its process was ended: rank 1 of 2 (stage 1, share 0): its process was killed by SIGKILL"
    assert [line["how"] for line in lines if "how" in line] == [ended]
    assert not set(rank_pids(executable)) & set(pids)
    given = executable.execute(samples(5), None)["y"]
    np.testing.assert_allclose(given, expected(module, samples(5)).numpy(), rtol=1e-5, atol=1e-6)
    executable.close()


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_in_a_run_is_named(tmp_path: Path, make_context: MakeContext, victim: int) -> None:
    write_model(tmp_path, TOUCHY)
    executable = start(make_context, MLP_CONFIG + ranks(2, 1))
    hanging = samples(2)
    hanging["x"] *= np.float32(1e25)
    pids = rank_pids(executable)
    timer = threading.Timer(1, os.kill, (pids[victim], signal.SIGKILL))
    timer.start()
    named = "rank 1 of 2 (stage 0, share 1): its process was killed by SIGKILL" if victim else "was killed by SIGKILL"
    with pytest.raises(ModelFailed, match=re.escape(named)):
        executable.execute(hanging, None)
    timer.join()
    assert executable.execute(samples(2), None)["y"].shape == (2, 3)
    executable.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.long
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_a_rank_that_stops_ends_the_instance_at_the_time_limit(
    tmp_path: Path, make_context: MakeContext, tensor: int, pipeline: int
) -> None:
    write_model(tmp_path)
    limit = parameter("collective_timeout_seconds", "5")
    executable = start(make_context, MLP_CONFIG + ranks(tensor, pipeline) + limit)
    good = executable.execute(samples(2), None)["y"].copy()
    os.kill(rank_pids(executable)[1], signal.SIGSTOP)
    with pytest.raises(ModelFailed, match=r"infer: its process was ended: rank . of 2"):
        executable.execute(samples(2), None)
    np.testing.assert_array_equal(executable.execute(samples(2), None)["y"], good)
    executable.close()


@pytest.mark.long
def test_a_run_beyond_its_execution_timeout_ends_the_instance(tmp_path: Path, make_context: MakeContext) -> None:
    write_model(tmp_path)
    executable = start(make_context, MLP_CONFIG + ranks(1, 2) + parameter("execution_timeout_ms", "2000"))
    good = executable.execute(samples(2), None)["y"].copy()
    pids = rank_pids(executable)
    os.kill(pids[0], signal.SIGSTOP)
    with pytest.raises(ModelFailed, match="execution_timeout_ms = 2000"):
        executable.execute(samples(2), None)
    np.testing.assert_array_equal(executable.execute(samples(2), None)["y"], good)
    assert not set(rank_pids(executable)) & set(pids)
    executable.close()


@pytest.mark.long
def test_a_load_that_fails_in_one_rank_fails_and_leaves_nothing(tmp_path: Path, make_context: MakeContext) -> None:
    once = """

import os
from pathlib import Path

whole = build


def build():
    os.close(os.open(Path(__file__).with_name("built"), os.O_CREAT | os.O_EXCL))
    return whole()
"""
    write_model(tmp_path, MLP + once)
    (tmp_path / "built").unlink()
    with pytest.raises(ConfigError, match=r"model.py: build\(\): expected no exception, given FileExistsError"):
        load(make_context(MLP_CONFIG + ranks(2, 2)))


@pytest.mark.long
def test_a_rank_that_dies_in_its_load_is_named(tmp_path: Path, make_context: MakeContext) -> None:
    write_model(tmp_path)
    (tmp_path / "model.py").write_text(MLP + "\n\nimport os\n\nos.abort()\n")
    with pytest.raises(ModelFailed, match=r"load: its process was killed by SIGABRT|rank . of 2 .*SIGABRT"):
        load(make_context(MLP_CONFIG + ranks(1, 2)))
