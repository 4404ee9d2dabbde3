"""Versions come and go while agents ask: nobody else notices, and every answer is of the version it names."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from sample_models import onnx_bytes, plus_constant, write_config, write_onnx, write_python
from server_process import ServerProcess, StartServer

_FOUR_FLOATS = """
    max_batch_size: 8
    dynamic_batching { }
    input { name: "X" data_type: TYPE_FP32 dims: [4] }
    output { name: "Y" data_type: TYPE_FP32 dims: [4] }
"""
_PLUS = 'backend: "onnxruntime"\n' + _FOUR_FLOATS
_PYTHON = 'backend: "python"\n' + _FOUR_FLOATS
_ENSEMBLE = """
    platform: "ensemble"
    max_batch_size: 8
    input { name: "X" data_type: TYPE_FP32 dims: [4] }
    output { name: "Y" data_type: TYPE_FP32 dims: [4] }
    ensemble_scheduling {
      step { model_name: "steady" model_version: -1
             input_map { key: "X" value: "X" } output_map { key: "Y" value: "between" } }
      step { model_name: "plus" model_version: -1
             input_map { key: "X" value: "between" } output_map { key: "Y" value: "Y" } }
    }
"""


#: Its load waits while a file named "wait" is beside it.
_LOADS_WHILE_ALLOWED = """
    import pathlib
    import time

    while (pathlib.Path(__file__).parent / "wait").exists():
        time.sleep(0.01)

    class Model:
        def infer(self, inputs):
            return {"Y": inputs["X"]}
"""


def parameter(key: str, value: str) -> str:
    return f'\nparameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def write_plus(repository: Path, version: int, name: str = "plus") -> None:
    """Y = X + version. Moved into place whole, as a careful deployment does it."""
    directory = repository / name
    if not (directory / "config.pbtxt").exists():
        write_config(directory, _PLUS)
    staged = directory / f".staged-{version}"
    write_onnx(staged, plus_constant(version), version)
    (staged / str(version)).rename(directory / str(version))
    staged.rmdir()


def infer(client: Any, module: Any, model: str, value: float, version: str = "", timeout: int | None = None) -> Any:
    tensor = module.InferInput("X", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.full((1, 4), value, np.float32))
    return client.infer(model, [tensor], model_version=version, timeout=timeout)


def answer_of(result: Any) -> tuple[float, str]:
    response = result.get_response()
    version = response["model_version"] if isinstance(response, dict) else response.model_version
    return float(result.as_numpy("Y")[0, 0]), version


@dataclass
class Answer:
    began: float
    ended: float
    sent: float
    value: float
    version: str


@dataclass
class Load:
    """Threads of stock clients that ask one model without a pause."""

    server: ServerProcess
    model: str
    kinds: tuple[str, ...] = ("http", "grpc")
    answers: list[Answer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(kind,)) for kind in self.kinds]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, kind: str) -> None:
        module: Any = triton_http if kind == "http" else triton_grpc
        url = self.server.http_url if kind == "http" else self.server.grpc_url
        sent = 0.0
        with module.InferenceServerClient(url) as client:
            while not self._stop.is_set():
                sent = (sent + 1) % 1000
                began = time.monotonic()
                try:
                    value, version = answer_of(infer(client, module, self.model, sent))
                except InferenceServerException as error:
                    self.failures.append(str(error))
                    continue
                self.answers.append(Answer(began, time.monotonic(), sent, value, version))


@pytest.fixture
def control(explicit_server: ServerProcess) -> Iterator[Any]:
    with triton_http.InferenceServerClient(explicit_server.http_url) as client:
        yield client


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lifecycle") / "models"


@pytest.fixture(scope="module")
def explicit_server(repository: Path, server_factory: StartServer) -> Iterator[ServerProcess]:
    """One server for the whole module; each test loads models of its own."""
    repository.mkdir()
    with server_factory(repository, "--model-control-mode", "explicit", "--exit-timeout-secs", "2") as server:
        yield server


def index_of(client: Any, model: str) -> dict[str, tuple[str, str]]:
    rows = [row for row in client.get_model_repository_index() if row["name"] == model]
    return {row.get("version", ""): (row.get("state", ""), row.get("reason", "")) for row in rows}


def check_answers(answers: list[Answer], commits: list[tuple[int, float, float]], offset: float = 0.0) -> None:
    """Each answer is its version's function, and that version was the newest at some time during the request.

    A commit is (version, when it was asked for, when it was known to be done).
    """
    began = {version: asked for version, asked, _ in commits}
    ended = {commits[i][0]: commits[i + 1][2] for i in range(len(commits) - 1)}
    for answer in answers:
        version = int(answer.version)
        assert answer.value == answer.sent + version + offset, answer
        assert answer.ended >= began[version], answer
        assert answer.began <= ended.get(version, float("inf")), answer


@pytest.mark.long
def test_a_hundred_version_changes_under_load(explicit_server: ServerProcess, repository: Path, control: Any) -> None:
    write_plus(repository, 1)
    write_plus(repository, 7, "steady")
    write_config(repository / "both", _ENSEMBLE)
    (repository / "both" / "1").mkdir()
    for model in ("plus", "steady", "both"):
        control.load_model(model)
    commits = [(1, 0.0, 0.0)]
    with (
        Load(explicit_server, "plus", ("http", "grpc", "grpc")) as changing,
        Load(explicit_server, "steady") as steady,
        Load(explicit_server, "both") as both,
    ):
        for version in range(2, 102):
            write_plus(repository, version)
            asked = time.monotonic()
            control.load_model("plus")
            commits.append((version, asked, time.monotonic()))
            _until(partial(_is_seen, changing, version))
            if version > 2:
                shutil.rmtree(repository / "plus" / str(version - 2))
    assert not changing.failures
    assert not steady.failures
    assert not both.failures
    check_answers(changing.answers, commits)
    assert {int(answer.version) for answer in changing.answers} >= set(range(2, 102))
    assert all(answer.value == answer.sent + 7 for answer in steady.answers)
    # The ensemble's own version stays 1; its last step is whatever version was the newest when it started.
    for answer in both.answers:
        answer.version = str(int(answer.value - answer.sent - 7))
    check_answers(both.answers, commits, offset=7.0)
    index = index_of(control, "plus")
    assert index["101"] == ("READY", "")
    assert [version for version, (state, _) in index.items() if state == "READY"] == ["101"]
    for model in ("both", "steady", "plus"):
        control.unload_model(model)


@pytest.mark.long
def test_a_hundred_version_changes_followed_by_polling(tmp_path: Path, server_factory: StartServer) -> None:
    models = tmp_path / "models"
    write_plus(models, 1)
    commits = [(1, 0.0, 0.0)]
    with (
        server_factory(models, "--model-control-mode", "poll", "--repository-poll-secs", "0.05") as server,
        triton_http.InferenceServerClient(server.http_url) as client,
    ):
        with Load(server, "plus") as load:
            for version in range(2, 102):
                asked = time.monotonic()
                write_plus(models, version)
                _until(partial(client.is_model_ready, "plus", str(version)))
                commits.append((version, asked, time.monotonic()))
                _until(partial(_is_seen, load, version))
                if version > 2:
                    shutil.rmtree(models / "plus" / str(version - 2))
        assert not load.failures
        check_answers(load.answers, commits)
        assert {int(answer.version) for answer in load.answers} >= set(range(2, 102))
        shutil.rmtree(models / "plus")
        _until(lambda: not client.get_model_repository_index())
        with pytest.raises(InferenceServerException, match="unknown model"):
            infer(client, triton_http, "plus", 1.0)


def _is_seen(load: Load, version: int) -> bool:
    """Whether a version has answered, or something failed."""
    return bool(load.failures) or any(answer.version == str(version) for answer in load.answers[-200:])


def _until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends, "did not come true in 60 s"
        time.sleep(0.005)


def test_loading_and_unloading_one_model_never_disturbs_another(
    explicit_server: ServerProcess, repository: Path, control: Any
) -> None:
    write_plus(repository, 3, "other")
    write_plus(repository, 5, "guest")
    control.load_model("other")
    with Load(explicit_server, "other") as load:
        for _ in range(20):
            control.load_model("guest")
            assert answer_of(infer(control, triton_http, "guest", 1.0)) == (6.0, "5")
            control.unload_model("guest")
            with pytest.raises(InferenceServerException, match="'guest'"):
                infer(control, triton_http, "guest", 1.0)
    assert not load.failures
    assert all(answer.value == answer.sent + 3 for answer in load.answers)
    control.unload_model("other")


def test_unload_fails_only_requests_for_the_unloaded_model(
    explicit_server: ServerProcess, repository: Path, control: Any
) -> None:
    write_plus(repository, 1, "leaving")
    control.load_model("leaving")
    with Load(explicit_server, "leaving") as load:
        _until(lambda: len(load.answers) > 50)
        control.unload_model("leaving")
        _until(lambda: len(load.failures) > 5)
    assert all("'leaving'" in failure for failure in load.failures)
    assert all(answer.value == answer.sent + 1 for answer in load.answers)


def test_unload_returns_after_memory_is_free(explicit_server: ServerProcess, repository: Path, control: Any) -> None:
    size = 50 * 1024 * 1024
    table = helper.make_tensor("table", TensorProto.FLOAT, [size], np.ones(size, np.float32).tobytes(), raw=True)
    data = onnx_bytes(
        [
            helper.make_node("Cast", ["X"], ["place"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "place"], ["Y"]),
        ],
        [("X", TensorProto.FLOAT, ["batch", 4])],
        [("Y", TensorProto.FLOAT, ["batch", 4])],
        [table],
    )
    write_config(repository / "large", _PLUS)
    write_onnx(repository / "large", data)
    del data, table
    before = explicit_server.resident_bytes()
    control.load_model("large")
    loaded = explicit_server.resident_bytes()
    assert answer_of(infer(control, triton_http, "large", 5.0))[0] == 1.0
    control.unload_model("large")
    after = explicit_server.resident_bytes()
    assert loaded - before > 180 * 2**20
    assert after - before < 40 * 2**20


def test_a_failed_load_leaves_the_old_version_and_says_why(
    explicit_server: ServerProcess, repository: Path, control: Any
) -> None:
    write_plus(repository, 1, "upgrade")
    control.load_model("upgrade")
    write_onnx(repository / "upgrade", b"this is no onnx file" * 100, 2)
    with Load(explicit_server, "upgrade") as load:
        with pytest.raises(InferenceServerException):
            control.load_model("upgrade")
        _until(lambda: len(load.answers) > 20)
    assert not load.failures
    assert all((answer.value, answer.version) == (answer.sent + 1, "1") for answer in load.answers)
    index = index_of(control, "upgrade")
    assert index["1"][0] == "READY"
    assert "the last load failed" in index["1"][1]
    assert index["2"][0] == "UNAVAILABLE"
    assert index["2"][1]
    with pytest.raises(InferenceServerException, match="version 2 is not at ready state"):
        infer(control, triton_http, "upgrade", 1.0, version="2")
    shutil.rmtree(repository / "upgrade" / "2")
    control.load_model("upgrade")
    assert index_of(control, "upgrade")["1"] == ("READY", "")
    control.unload_model("upgrade")


_COUNTING = """
    import pathlib

    class Model:
        def load(self, context):
            with open(pathlib.Path(context.directory).parent / "loads", "a") as file:
                file.write(context.model_version + " ")

        def infer(self, inputs):
            return {"Y": inputs["X"] + VERSION}
"""


def test_adding_a_version_does_not_reload_the_others(
    explicit_server: ServerProcess, repository: Path, control: Any
) -> None:
    directory = repository / "several"
    write_config(directory, _PYTHON + "version_policy { all { } }")
    for version in (1, 2):
        write_python(directory, _COUNTING.replace("VERSION", str(version)), version)
    control.load_model("several")
    write_python(directory, _COUNTING.replace("VERSION", "3"), 3)
    control.load_model("several")
    control.load_model("several")
    assert (directory / "loads").read_text().split() == ["1", "2", "3"]
    for name in ("1", "2", "3"):
        assert answer_of(infer(control, triton_http, "several", 1.0, version=name)) == (1.0 + int(name), name)
    assert answer_of(infer(control, triton_http, "several", 1.0))[1] == "3"
    control.unload_model("several")


def test_a_directory_that_vanishes_does_not_stop_what_is_served(
    explicit_server: ServerProcess, repository: Path, control: Any
) -> None:
    write_plus(repository, 4, "vanishing")
    control.load_model("vanishing")
    shutil.rmtree(repository / "vanishing")
    assert answer_of(infer(control, triton_http, "vanishing", 1.0)) == (5.0, "4")
    with pytest.raises(InferenceServerException, match="unknown model"):
        control.load_model("vanishing")
    assert answer_of(infer(control, triton_http, "vanishing", 1.0)) == (5.0, "4")
    control.unload_model("vanishing")


_FAULTY = """
    import os, pathlib, sys, threading, time

    class Model:
        def load(self, context):
            self.inside = pathlib.Path(context.directory).parent / "inside"
            if context.parameters.get("fault") == "load":
                raise RuntimeError("no weights today")

        def infer(self, inputs):
            kind = float(inputs["X"].max())
            if kind == 101:
                raise ValueError("not that one")
            if kind == 102:
                sys.exit(3)
            if kind == 103:
                os._exit(4)
            if kind == 105 and threading.current_thread() is not threading.main_thread():
                return {"Y": inputs["X"]}
            if kind >= 104:
                self.inside.touch()
                while True:
                    time.sleep(0.01)
            if "SLOW":
                time.sleep(0.0005)
            return {"Y": inputs["X"]}
"""


def write_faulty(repository: Path, name: str, parameters: str = "", *, slow: bool = True) -> None:
    write_config(repository / name, _PYTHON + parameters)
    write_python(repository / name, _FAULTY.replace('"SLOW"', str(slow)))


def failure_of(client: Any, model: str, value: float) -> str:
    with pytest.raises(InferenceServerException) as raised:
        infer(client, triton_http, model, value)
    return str(raised.value)


def test_a_model_that_raises_in_load(explicit_server: ServerProcess, repository: Path, control: Any) -> None:
    write_faulty(repository, "unloadable", parameter("fault", "load"))
    with pytest.raises(InferenceServerException, match="load raised RuntimeError: no weights today"):
        control.load_model("unloadable")
    assert "no weights today" in index_of(control, "unloadable")["1"][1]


@pytest.mark.parametrize("slow", [False, True], ids=["inline", "threaded"])
def test_a_model_that_raises_or_exits_harms_only_its_request(
    explicit_server: ServerProcess, repository: Path, control: Any, slow: bool
) -> None:
    name = f"faulty_{'slow' if slow else 'fast'}"
    write_faulty(repository, name, slow=slow)
    control.load_model(name)
    with Load(explicit_server, name) as load:
        for _ in range(10):
            assert "ValueError: not that one" in failure_of(control, name, 101)
            assert "SystemExit" in failure_of(control, name, 102)
    # Agents count from 0 to 999 and meet the two bad inputs themselves.
    assert {failure.split(" raised ")[1].split(":")[0] for failure in load.failures} <= {"ValueError", "SystemExit"}
    assert len(load.failures) <= 2 * (len(load.answers) // 900 + 2)
    assert all(answer.value == answer.sent for answer in load.answers)
    control.unload_model(name)


def test_a_hang_inline_gives_the_loop_back(explicit_server: ServerProcess, repository: Path, control: Any) -> None:
    write_faulty(repository, "hangs_inline", slow=False)
    control.load_model("hangs_inline")
    assert answer_of(infer(control, triton_http, "hangs_inline", 1.0))[0] == 1.0
    # It hangs only on the loop's thread, where a busy machine may let it run a little later.
    failures: list[str] = []

    def hangs() -> bool:
        try:
            infer(control, triton_http, "hangs_inline", 105)
        except InferenceServerException as error:
            failures.append(str(error))
        return bool(failures)

    _until(hangs)
    assert "InlineHang" in failures[0]
    assert answer_of(infer(control, triton_http, "hangs_inline", 2.0))[0] == 2.0
    control.unload_model("hangs_inline")


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_hang_beyond_the_execution_timeout_is_given_up(
    explicit_server: ServerProcess, repository: Path, control: Any, isolation: str
) -> None:
    name = f"hangs_{isolation}"
    write_faulty(repository, name, parameter("execution_timeout_ms", "1500") + parameter("isolation", isolation))
    control.load_model(name)
    for _ in range(2):
        assert "execution_timeout_ms" in failure_of(control, name, 104)
        _until(lambda: _answers(control, name))
    control.unload_model(name)


def _answers(client: Any, model: str) -> bool:
    try:
        return answer_of(infer(client, triton_http, model, 3.0))[0] == 3.0
    except InferenceServerException as error:
        if "started again" not in str(error):
            raise
        return False


def test_an_isolated_model_may_exit(explicit_server: ServerProcess, repository: Path, control: Any) -> None:
    write_faulty(repository, "isolated", parameter("isolation", "process"))
    control.load_model("isolated")
    assert "ended" in failure_of(control, "isolated", 103) or "exit" in failure_of(control, "isolated", 103)
    _until(lambda: _answers(control, "isolated"))
    control.unload_model("isolated")
    assert control.is_server_live()


def test_a_model_whose_process_died_is_not_ready_until_the_next_has_loaded(
    explicit_server: ServerProcess, repository: Path, control: Any
) -> None:
    write_config(repository / "killed", _PYTHON + parameter("isolation", "process"))
    write_python(repository / "killed", _LOADS_WHILE_ALLOWED)
    control.load_model("killed")
    assert control.is_model_ready("killed")
    (child,) = psutil.Process(explicit_server.pid).children(recursive=True)
    wait = repository / "killed" / "1" / "wait"
    wait.touch()
    child.kill()
    _until(lambda: not control.is_model_ready("killed"))
    assert control.is_server_live()
    wait.unlink()
    # Without a request.
    _until(lambda: control.is_model_ready("killed"))
    assert _answers(control, "killed")
    control.unload_model("killed")


def test_a_hung_request_does_not_keep_a_model_from_being_unloaded(
    explicit_server: ServerProcess, repository: Path, control: Any
) -> None:
    write_faulty(repository, "stuck")
    control.load_model("stuck")
    failures: list[str] = []

    def ask() -> None:
        with triton_grpc.InferenceServerClient(explicit_server.grpc_url) as client:
            try:
                infer(client, triton_grpc, "stuck", 104)
            except InferenceServerException as error:
                failures.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    _until((repository / "stuck" / "inside").exists)
    control.unload_model("stuck")
    thread.join()
    assert "is being unloaded" in failures[0]


def test_warm_up_ran_every_batch_size_before_ready(
    explicit_server: ServerProcess, repository: Path, control: Any
) -> None:
    directory = repository / "warmed"
    write_config(directory, _PYTHON + "instance_group { count: 2 }")
    write_python(
        directory,
        """
        import pathlib

        class Model:
            def load(self, context):
                self.log = pathlib.Path(context.directory).parent / f"runs-{context.instance}"

            def infer(self, inputs):
                with open(self.log, "a") as file:
                    file.write(f"{len(inputs['X'])} ")
                return {"Y": inputs["X"]}
        """,
    )
    control.load_model("warmed")
    for instance in range(2):
        runs = [int(word) for word in (directory / f"runs-{instance}").read_text().split()]
        assert sorted(set(runs)) == [1, 2, 4, 8]
    statistics = control.get_inference_statistics("warmed")["model_stats"][0]
    assert statistics["inference_count"] == 0
    assert statistics["execution_count"] == 0
    control.unload_model("warmed")


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_sigterm_ends_a_server_whose_model_hangs_in_load(tmp_path: Path, isolation: str) -> None:
    models = tmp_path / "models"
    write_config(models / "endless", _PYTHON + parameter("isolation", isolation))
    write_python(
        models / "endless",
        """
        import pathlib, time

        class Model:
            def load(self, context):
                (pathlib.Path(context.directory).parent / "loading").touch()
                while True:
                    time.sleep(0.05)

            def infer(self, inputs):
                return inputs
        """,
    )
    command = [str(Path(sys.executable).with_name("isochrone")), "serve", str(models), "--host", "127.0.0.1"]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _until((models / "endless" / "loading").exists)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        _, alive = psutil.wait_procs(children, timeout=60)
        assert not alive
    finally:
        process.kill()
        process.wait()


def test_answers_keep_the_order_of_requests_where_asked_for(
    explicit_server: ServerProcess, repository: Path, control: Any
) -> None:
    """Two instances, the first request the slowest: without preserve_ordering the others would overtake it."""
    directory = repository / "ordered"
    text = _PYTHON.replace("dynamic_batching { }", "dynamic_batching { preserve_ordering: true }")
    write_config(directory, text.replace("max_batch_size: 8", "max_batch_size: 1") + "instance_group { count: 2 }")
    write_python(
        directory,
        """
        import time

        class Model:
            def infer(self, inputs):
                time.sleep(float(inputs["X"].max()) / 1000)
                return {"Y": inputs["X"]}
        """,
    )
    control.load_model("ordered")
    order: list[float] = []
    done = threading.Semaphore(0)

    def note(result: Any, error: Any) -> None:
        order.append(-1.0 if error else float(result.as_numpy("Y")[0, 0]))
        done.release()

    sent = [200.0, 1.0, 2.0, 150.0, 3.0, 4.0]
    with triton_grpc.InferenceServerClient(explicit_server.grpc_url) as client:
        client.start_stream(note)
        for value in sent:
            tensor = triton_grpc.InferInput("X", [1, 4], "FP32")
            tensor.set_data_from_numpy(np.full((1, 4), value, np.float32))
            client.async_stream_infer("ordered", [tensor])
        for _ in sent:
            assert done.acquire(timeout=60)
        client.stop_stream()
    assert order == sent
    control.unload_model("ordered")


def test_the_index_is_json_a_person_can_read(explicit_server: ServerProcess, control: Any) -> None:
    """After all that, the server is whole: nothing is loaded, and the index says so."""
    rows = control.get_model_repository_index()
    assert not [row for row in rows if row.get("state") in ("READY", "LOADING", "UNLOADING")], json.dumps(rows)
    assert control.is_server_live()
    assert "Traceback" not in explicit_server.log_text()
