"""torch models in processes of their own: the answers and errors of the others, and what their deaths cost.

Each process imports torch, which takes seconds. What the executable does at a death is the same for every backend, and
``test_python_isolated`` has it with processes that start sooner; so here it is long.
"""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import psutil
import pytest
import torch
from config_text import parameter, tensors
from load_contexts import MakeContext
from started_executables import started

from isochrone.errors import ConfigError, InvalidArgument, IsochroneError, ModelFailed
from isochrone.worker.backends.isolation.executable import IsolatedExecutable
from isochrone.worker.backends.torch.backend import load

pytestmark = pytest.mark.usefixtures("nothing_leaks")

ISOLATED = parameter("isolation", "process")
FLOATS = tensors("input", x="FP32") + tensors("output", y="FP32")


class Doubler(torch.nn.Module):  # type: ignore[misc]
    """Doubles; never returns for a negative number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        while bool((y < 0).any()):
            y = y * 1.0
        return y * 2


class Kinds(torch.nn.Module):  # type: ignore[misc]
    def forward(
        self, f: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, t: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return f, b + b, h + h, i * 3, torch.logical_not(t)


def script(directory: Path, module: torch.nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module).save(str(directory / "model.pt"))


def start(make_context: MakeContext, config: str = FLOATS + ISOLATED) -> IsolatedExecutable:
    executable = load(make_context(config))
    assert isinstance(executable, IsolatedExecutable)
    return started(executable)


def ask(executable: IsolatedExecutable, number: float) -> float:
    return float(executable.execute({"x": np.array([number], np.float32)}, None)["y"].item())


def pid_of(executable: IsolatedExecutable) -> int:
    assert executable.pid is not None
    return executable.pid


def kill(pid: int) -> None:
    """Returns when the process has ended."""
    death = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([death], [], [])
    os.close(death)


def test_answers_are_those_of_a_model_inside_the_worker(tmp_path: Path, make_context: MakeContext) -> None:
    script(tmp_path, Kinds())
    kinds = {"f": "FP32", "b": "BF16", "h": "FP16", "i": "INT64", "t": "BOOL"}
    config = tensors("input", **kinds) + tensors("output", **{f"{name}_out": kind for name, kind in kinds.items()})
    inside, isolated = load(make_context(config)), start(make_context, config + ISOLATED)
    for rows in (0, 1, 3, 40_000):
        inputs = {
            "f": np.arange(rows * 2, dtype=np.float32).reshape(rows, 2),
            "b": np.arange(rows, dtype=np.float32).astype(ml_dtypes.bfloat16),
            "h": np.arange(rows, dtype=np.float32).astype(np.float16),
            "i": np.arange(rows, dtype=np.int64),
            "t": np.arange(rows) % 2 == 0,
        }
        expected, given = inside.execute(inputs, None), isolated.execute(inputs, None)
        assert list(given) == list(expected)
        for name, array in expected.items():
            assert given[name].dtype == array.dtype
            assert given[name].shape == array.shape
            assert given[name].tobytes() == array.tobytes()
    assert list(isolated.execute(inputs, ("i_out",))) == ["i_out"]
    isolated.close()
    inside.close()


def test_an_exception_costs_no_process(tmp_path: Path, make_context: MakeContext) -> None:
    script(tmp_path, Doubler())
    executable = start(make_context, FLOATS + tensors("output", z="FP32") + ISOLATED)
    pid = pid_of(executable)
    for _ in range(2):
        with pytest.raises(ModelFailed, match="model 'm' version 1: expected 2 outputs, given 1"):
            ask(executable, 1)
    assert executable.pid == pid
    executable.close()


@pytest.mark.long
def test_a_process_killed_between_two_calls_costs_nobody_a_failure(tmp_path: Path, make_context: MakeContext) -> None:
    script(tmp_path, Doubler())
    executable = start(make_context)
    for _ in range(2):
        pid = pid_of(executable)
        kill(pid)
        assert ask(executable, 4) == 8
        assert executable.pid != pid
    executable.close()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_dies_in_a_run_fails_that_call_alone(
    tmp_path: Path, make_context: MakeContext, number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    script(tmp_path, Doubler())
    executable = start(make_context)
    process = psutil.Process(pid_of(executable))
    idle = process.cpu_times().user
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, executable, -1)
        # Idle, it computes nothing: this much is its run.
        while process.cpu_times().user < idle + 0.5 and not running.done():
            time.sleep(0.01)
        process.send_signal(number)
        with pytest.raises(ModelFailed, match=f"model 'm' version 1: infer: its process was killed by {number.name}"):
            running.result(60)
    assert ask(executable, 4) == 8
    executable.close()
    assert ("Segmentation fault" in capfd.readouterr().err) == (number == signal.SIGSEGV)


@pytest.mark.long
def test_a_process_that_stops_is_killed_at_the_timeout(tmp_path: Path, make_context: MakeContext) -> None:
    script(tmp_path, Doubler())
    executable = start(make_context, FLOATS + ISOLATED + parameter("execution_timeout_ms", "3000"))
    assert ask(executable, 4) == 8
    pid = pid_of(executable)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ModelFailed, match="infer took longer than execution_timeout_ms = 3000, its process was killed"):
        ask(executable, 4)
    assert not psutil.pid_exists(pid)
    assert ask(executable, 5) == 10
    executable.close()


@pytest.mark.long
def test_a_stopped_process_does_not_outlive_its_model(tmp_path: Path, make_context: MakeContext) -> None:
    script(tmp_path, Doubler())
    executable = start(make_context)
    pid = pid_of(executable)
    os.kill(pid, signal.SIGSTOP)
    executable.close()
    assert not psutil.pid_exists(pid)


def no_file(directory: Path) -> None: ...


def broken_file(directory: Path) -> None:
    (directory / "model.pt2").write_bytes(b"not an archive")


def good_file(directory: Path) -> None:
    script(directory, Doubler())


@pytest.mark.parametrize(
    ("prepare", "config", "kind"),
    [
        (no_file, FLOATS, ConfigError),
        (broken_file, FLOATS, InvalidArgument),
        pytest.param(
            good_file,
            tensors("input", a="FP32", b="FP32") + tensors("output", y="FP32"),
            ConfigError,
            marks=pytest.mark.long,
        ),
        pytest.param(
            good_file,
            tensors("input", x="STRING") + tensors("output", y="FP32"),
            ConfigError,
            marks=pytest.mark.long,
        ),
        pytest.param(
            good_file, FLOATS + parameter("intra_op_thread_count", "none"), ConfigError, marks=pytest.mark.long
        ),
    ],
)
def test_errors_at_the_load_are_those_of_a_model_inside_the_worker(
    tmp_path: Path,
    make_context: MakeContext,
    prepare: Callable[[Path], None],
    config: str,
    kind: type[IsochroneError],
) -> None:
    prepare(tmp_path)
    with pytest.raises(kind) as inside:
        load(make_context(config))
    with pytest.raises(kind) as isolated:
        load(make_context(config + ISOLATED))
    assert type(isolated.value) is type(inside.value) is kind
    assert str(isolated.value) == str(inside.value)


def test_another_isolation_is_rejected(tmp_path: Path, make_context: MakeContext) -> None:
    script(tmp_path, Doubler())
    with pytest.raises(ConfigError, match=r'parameters\["isolation"\]: expected one of thread, process, given .vm'):
        load(make_context(FLOATS + parameter("isolation", "vm")))


def test_the_process_has_the_cpus_and_the_threads_of_its_instance(tmp_path: Path, make_context: MakeContext) -> None:
    script(tmp_path, Doubler())
    cpu = min(os.sched_getaffinity(0))
    threads = torch.get_num_threads()
    context = make_context(FLOATS + ISOLATED + parameter("intra_op_thread_count", "7"))
    executable = load(dataclasses.replace(context, cpus=(cpu,)))
    assert isinstance(executable, IsolatedExecutable)
    started(executable)
    assert psutil.Process(pid_of(executable)).cpu_affinity() == [cpu]
    assert torch.get_num_threads() == threads
    executable.close()


def test_the_server_does_not_import_torch_for_an_isolated_model(tmp_path: Path) -> None:
    script(tmp_path, Doubler())
    server = f"""
import pathlib, sys
import numpy as np
from tritonclient.grpc import model_config_pb2
from google.protobuf import text_format
from isochrone.models.signature import signature_of
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.torch.backend import load
config = model_config_pb2.ModelConfig(name="m")
text_format.Parse({FLOATS!r}, config)
directory, parameters = pathlib.Path({str(tmp_path)!r}), {{"isolation": "process"}}
executable = load(LoadContext("m", "1", directory, config, signature_of(config), 0, (), parameters))
print(executable.execute({{"x": np.ones(1, np.float32)}}, None)["y"].item(), "torch" in sys.modules)
executable.close()
"""
    done = subprocess.run([sys.executable, "-c", server], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["2.0", "False"]
