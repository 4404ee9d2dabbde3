"""Models in processes of their own: what goes over, what they survive, and what is left when they are gone."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from config_text import parameter, tensors
from load_contexts import MakeContext
from started_executables import started
from structlog.testing import capture_logs

from isochrone.clock import SECOND
from isochrone.errors import ConfigError, ModelFailed, Unavailable
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.isolation.executable import IsolatedExecutable
from isochrone.worker.backends.python.backend import load

ISOLATED = parameter("isolation", "process")
FLOATS = tensors("input", x="FP32") + tensors("output", y="FP32") + ISOLATED
ONE = {"x": np.array([[1.0, 2.0]], np.float32)}

#: Does what input x's first number says.
OBEDIENT = """
import ctypes, os, sys, threading

class Model:
    def infer(self, inputs):
        order = int(inputs["x"].flat[0])
        if order == 1:
            os._exit(7)
        if order == 2:
            ctypes.string_at(0)
        if order == 3:
            threading.Event().wait()
        if order == 4:
            sys.exit(5)
        if order == 5:
            if os.fork() == 0:
                threading.Event().wait()
            os._exit(0)
        return {"y": inputs["x"] * 2}
"""


def write(directory: Path, source: str) -> None:
    (directory / "model.py").write_text(textwrap.dedent(source))


def start(context: LoadContext) -> IsolatedExecutable:
    executable = load(context)
    assert isinstance(executable, IsolatedExecutable)
    return started(executable)


def order(number: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {"x": np.array([[number]], np.float32)}


@pytest.fixture(autouse=True)
def _no_named_shared_memory(nothing_leaks: None) -> Iterator[None]:
    yield
    # Tests of the store and of shared memory keep their files there too, and may run beside these.
    left = [name for name in os.listdir("/dev/shm") if "isochrone" in name]
    assert not [name for name in left if not name.startswith(("isochrone-store-", "isochrone_test_"))]


def test_every_type_goes_over_and_comes_back(tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        """
        class Model:
            def load(self, context):
                self.context = context

            def infer(self, inputs):
                assert not inputs["f"].flags.writeable
                assert self.context.config["max_batch_size"] == 4 and self.context.instance == 0
                return {f"{name}_out": array[::-1] for name, array in inputs.items()}
        """,
    )
    kinds = {"f": "FP32", "b": "BF16", "h": "FP16", "i": "INT64", "t": "BOOL", "s": "STRING"}
    outputs = tensors("output", **{f"{name}_out": kind for name, kind in kinds.items()})
    executable = start(make_context("max_batch_size: 4\n" + tensors("input", **kinds) + outputs + ISOLATED))
    assert not executable.inline_allowed
    for rows in (0, 1, 3):
        inputs = {
            "f": np.arange(rows * 2, dtype=np.float32).reshape(rows, 2),
            "b": np.arange(rows, dtype=ml_dtypes.bfloat16),
            "h": np.arange(rows, dtype=np.float16),
            "i": np.arange(rows, dtype=np.int64),
            "t": np.arange(rows) % 2 == 0,
            "s": np.array([b"\xff" * n for n in range(rows)], np.object_),
        }
        results = executable.execute(inputs, None)
        for name, array in inputs.items():
            given = results[f"{name}_out"]
            assert given.dtype == array.dtype
            assert given.shape == array.shape
            assert given.tolist() == array[::-1].tolist()
    assert list(executable.execute(inputs, ("i_out",))) == ["i_out"]
    executable.close()


def test_large_results_stay_as_they_were_while_someone_holds_them(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, "class Model:\n  def infer(self, inputs): return {'y': inputs['x']}")
    executable = start(make_context(FLOATS))
    held = []
    for number in range(8):  # more than there are blocks, each larger than the last
        size = 50_000 * (1 + number)
        held.append((number, size, executable.execute({"x": np.full(size, number, np.float32)}, None)["y"]))
    for number, size, y in held:
        assert y.shape == (size,)
        assert (y == number).all()
    assert sum(not y.flags.owndata for _, _, y in held) == 3
    executable.close()
    assert all((y == number).all() for number, _, y in held)


@pytest.mark.parametrize(
    ("number", "message"),
    [(1, "infer: its process exited with code 7"), (2, "infer: its process was killed by SIGSEGV")],
)
def test_a_death_fails_its_call_and_the_next_is_served(
    tmp_path: Path, make_context: MakeContext, capfd: pytest.CaptureFixture[str], number: int, message: str
) -> None:
    write(tmp_path, OBEDIENT)
    executable = start(make_context(FLOATS))
    for _ in range(2):
        with pytest.raises(ModelFailed) as failed:
            executable.execute(order(number), None)
        assert str(failed.value) == f"model 'm' version 1: {message}"
        assert executable.execute(order(10), None)["y"].item() == 20
    executable.close()
    assert ("Segmentation fault" in capfd.readouterr().err) == (number == 2)


def test_a_hang_ends_at_the_timeout(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, OBEDIENT)
    executable = start(make_context(FLOATS + parameter("execution_timeout_ms", "1500")))
    assert executable.execute(order(10), None)["y"].item() == 20
    pid = executable.pid
    with pytest.raises(ModelFailed, match="infer took longer than execution_timeout_ms = 1500, its process was kil"):
        executable.execute(order(3), None)
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert executable.execute(order(10), None)["y"].item() == 20
    executable.close()


def test_a_stopped_process_does_not_outlive_its_model(
    tmp_path: Path, make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isochrone.worker.backends.isolation.child._CLOSE_MILLISECONDS", 100)
    write(tmp_path, OBEDIENT)
    executable = start(make_context(FLOATS))
    pid = executable.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    executable.close()
    assert not psutil.pid_exists(pid)


def test_exceptions_do_not_cost_the_process(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, OBEDIENT)
    executable = start(make_context(FLOATS))
    pid = executable.pid
    with pytest.raises(ModelFailed, match=r"model 'm' version 1: infer raised SystemExit: 5 \(model.py:14\)"):
        executable.execute(order(4), None)
    assert executable.execute(order(10), None)["y"].item() == 20
    assert executable.pid == pid
    executable.close()


def test_a_death_is_noticed_though_a_grandchild_holds_the_socket(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, OBEDIENT)
    executable = start(make_context(FLOATS))
    group = executable.pid
    with pytest.raises(ModelFailed, match="its process exited with code 0"):
        executable.execute(order(5), None)
    assert executable.execute(order(10), None)["y"].item() == 20
    executable.close()
    assert group is not None
    states = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group:
                states.append(process.info["status"])
        except ProcessLookupError:
            continue
    assert set(states) <= {psutil.STATUS_ZOMBIE}  # killed; its adoptive parent reaps it


class StoppedClock:
    """Stands in for the clock: no time passes."""

    SECOND = SECOND

    def now_ns(self) -> int:
        return 7 * SECOND


def test_deaths_in_a_row_make_callers_wait(
    tmp_path: Path, make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isochrone.worker.backends.processes.restarts.clock", StoppedClock())
    write(tmp_path, OBEDIENT)
    executable = start(make_context(FLOATS))
    for _ in range(2):
        with pytest.raises(ModelFailed):
            executable.execute(order(1), None)
    with pytest.raises(Unavailable, match=r"exited with code 7, 2 times in a row; it is started again in 0\.1 s"):
        executable.execute(order(10), None)
    executable._restarts._not_before = 0
    assert executable.execute(order(10), None)["y"].item() == 20
    executable.close()


def test_a_child_killed_while_idle_costs_nobody_a_failure(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, OBEDIENT)
    executable = start(make_context(FLOATS))
    assert executable.pid is not None
    death = os.pidfd_open(executable.pid)
    os.kill(executable.pid, signal.SIGKILL)
    select.select([death], [], [])
    os.close(death)
    assert executable.execute(order(10), None)["y"].item() == 20
    executable.close()


def test_load_errors_keep_their_kind(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, "class Other: pass")
    with pytest.raises(ConfigError, match=r"model\.py: Model: expected a class, given no such name"):
        load(make_context(FLOATS))
    write(tmp_path, "class Model:\n  def load(self, c): raise OSError('no weights')\n  def infer(self, i): ...")
    with pytest.raises(ModelFailed, match=r"load raised OSError: no weights \(model.py:2\)"):
        load(make_context(FLOATS))
    write(tmp_path, "import os; os._exit(9)")
    with pytest.raises(ModelFailed, match="load: its process exited with code 9"):
        load(make_context(FLOATS))


def test_close_runs_the_models_own(tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        """
        import pathlib

        class Model:
            def infer(self, inputs):
                return {"y": inputs["x"]}

            def close(self):
                (pathlib.Path(__file__).parent / "closed").touch()
        """,
    )
    start(make_context(FLOATS)).close()
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_decoupled(tmp_path: Path, make_context: MakeContext, kind: str) -> None:
    write(
        tmp_path,
        f"""
        import os

        class Model:
            stopped = 0

            {kind} infer(self, inputs, parameters):
                try:
                    for step in range(parameters["steps"]):
                        if step == 4:
                            os._exit(3)
                        yield {{"y": inputs["x"] * step + self.stopped * 100}}
                finally:
                    Model.stopped += 1
        """,
    )
    executable = start(make_context(FLOATS + "model_transaction_policy { decoupled: true }"))
    assert executable.decoupled
    assert [response["y"][0, 1] for response in executable.stream(ONE, {"steps": 3})] == [0.0, 2.0, 4.0]
    abandoned = executable.stream(ONE, {"steps": 3})
    assert next(abandoned)["y"][0, 0] == 100
    abandoned.close()  # type: ignore[attr-defined]
    responses = executable.stream(ONE, {"steps": 5})
    assert [next(responses)["y"][0, 0] for _ in range(4)] == [200, 201, 202, 203]
    with pytest.raises(ModelFailed, match="its process exited with code 3"):
        next(responses)
    assert next(executable.stream(ONE, {"steps": 1}))["y"][0, 0] == 0
    with pytest.raises(ModelFailed, match="infer raised KeyError: 'steps'"):
        next(executable.stream(ONE, {}))
    executable.close()


def test_cpus_are_the_childs(tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        "import os\nclass Model:\n  def infer(self, inputs): return {'y': [float(c) for c in os.sched_getaffinity(0)]}",
    )
    cpu = min(os.sched_getaffinity(0))
    executable = start(make_context(FLOATS, cpus=(cpu,)))
    assert executable.execute(ONE, None)["y"].tolist() == [cpu]
    executable.close()


def test_a_child_dies_with_its_server_but_not_with_the_thread_that_loaded_it(tmp_path: Path) -> None:
    write(tmp_path, OBEDIENT)
    server = f"""
import os, pathlib, sys, threading
import numpy as np
from tritonclient.grpc import model_config_pb2
from google.protobuf import text_format
from isochrone.models.signature import signature_of
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.python.backend import load
config = model_config_pb2.ModelConfig(name="m")
text_format.Parse({FLOATS!r}, config)
directory, parameters = pathlib.Path({str(tmp_path)!r}), {{"isolation": "process"}}
context = LoadContext("m", "1", directory, config, signature_of(config), 0, (), parameters)
made = []
loading = threading.Thread(target=lambda: made.append(load(context)))
loading.start()
loading.join()
made[0].execute({{"x": np.ones((1, 1), np.float32) * 10}}, None)
print(made[0].pid, flush=True)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""
    with subprocess.Popen(
        [sys.executable, "-c", server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        assert child.is_running()
        process.stdin.close()
        assert process.wait(60) == -signal.SIGKILL
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_process_that_dies_and_comes_back_is_told_in_the_log(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, OBEDIENT)
    with capture_logs() as lines:
        executable = start(make_context(FLOATS))
        assert not lines
        for _ in range(2):
            with pytest.raises(ModelFailed):
                executable.execute(order(1), None)
            executable.execute(order(0), None)
        executable.close()
    assert [(line["event"], line["log_level"], line["not_shown"]) for line in lines] == [
        ("the process of a model was lost", "warning", 0),
        ("the process of a model was restarted", "warning", 0),
    ]
    assert (lines[0]["model"], lines[0]["version"]) == ("m", "1")
    assert lines[0]["how"] == "infer: its process exited with code 7"
    assert lines[1]["pid"] > 0


def test_a_process_that_fails_while_loading_is_the_loads_to_tell(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, "import os\nos._exit(3)")
    with capture_logs() as lines, pytest.raises(ModelFailed):
        start(make_context(FLOATS))
    assert not lines


def test_where_an_isolated_model_raised_comes_over_for_the_log(tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        """
        class Model:
            def infer(self, inputs):
                return self.inner()

            def inner(self):
                raise ValueError("deep inside")
        """,
    )
    executable = start(make_context(FLOATS))
    with pytest.raises(ModelFailed) as caught:
        executable.execute(ONE, None)
    executable.close()
    (note,) = caught.value.__notes__
    assert "in inner" in note
    assert note.endswith("ValueError: deep inside")
