"""Processes of one server are killed and stopped: the others go on, and what comes back has every control call."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.http
import tritonclient.utils.shared_memory as shared_memory
from process_groups import (
    UnixConnection,
    ask,
    ask_process,
    coordinator,
    infer_over_many_connections,
    is_ready,
    private_socket,
    samples,
    serving,
    wait_for,
)

from sample_models import write_config, write_models, write_python
from server_process import ServerProcess, StartServer

BODY = json.dumps({"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [1]}]})


#: Its loads, or its runs of the number 104 (a warm-up runs others), wait for a file beside its version: as long as a
#: test wants, on the slowest machine.
_HELD = """
    import pathlib
    import time
    import uuid

    class Model:
        def load(self, context):
            self.released = pathlib.Path(context.directory).parent / "released"
            self.wait("load")

        def infer(self, inputs):
            time.sleep(0.002)  # too slow to run on the loop's thread
            if inputs["IN"].max() == 104:
                self.wait("infer")
            return {"OUT": inputs["IN"]}

        def wait(self, where):
            if where == "HELD":
                self.released.with_name(f"waits-{uuid.uuid4()}").touch()
                while not self.released.exists():
                    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = write_models(tmp_path_factory.mktemp("models"), "identity_int32", "identity_fp32", "add_sub", "slow")
    for name, held in (("takes_its_time", "load"), ("held", "infer")):
        write_config(
            models / name,
            """
            backend: "python"
            input { name: "IN" data_type: TYPE_INT32 dims: -1 }
            output { name: "OUT" data_type: TYPE_INT32 dims: -1 }
            """,
        )
        write_python(models / name, _HELD.replace("HELD", held))
    return models


@pytest.fixture
def server(repository: Path, server_factory: StartServer) -> Iterator[ServerProcess]:
    arguments = ("--processes", "2", "--model-control-mode", "explicit", "--load-model", "identity_int32")
    with server_factory(
        repository, *arguments, "--load-model", "slow", "--load-model", "held", check_exit=False
    ) as server:
        # A process is ready a moment before it says so.
        wait_for(lambda: len(serving(server)) == 2)
        yield server


class Callers:
    """Keep sending requests on connections of their own, until a connection breaks or the end."""

    def __init__(self, server: ServerProcess, count: int) -> None:
        self.answers = [0] * count
        self.bad: list[str] = []
        self.broken = 0
        self._server = server
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, index: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=60)
        try:
            while not self._ended.is_set():
                connection.request("POST", "/v2/models/identity_int32/infer", BODY)
                answer = connection.getresponse()
                text = answer.read()
                if answer.status != 200:
                    self.bad.append(f"{answer.status} {text.decode()}")
                    return
                self.answers[index] += 1
                if answer.will_close:
                    return
        except OSError:
            self.broken += 1
        except http.client.HTTPException:
            self.broken += 1
        finally:
            connection.close()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(30)


def test_a_killed_process_comes_back_with_what_was_loaded(server: ServerProcess) -> None:
    assert ask(server, "POST", "/v2/repository/models/identity_fp32/load")[0] == 200
    assert ask(server, "POST", "/v2/repository/models/slow/unload")[0] == 200
    assert ask(server, "POST", "/v2/logging", {"log_format": "ISO8601"})[0] == 200
    infer_over_many_connections(server, "identity_int32")
    before = samples(server, "nv_inference_request_success", model="identity_int32")
    callers = Callers(server, 20)
    victim = serving(server)[2]
    wait_for(lambda: min(callers.answers) > 0)
    os.kill(victim, signal.SIGKILL)
    # Not all are ready any more; requests on other connections go on.
    wait_for(lambda: not is_ready(server) or serving(server)[2] != victim)
    answered = sum(callers.answers)
    wait_for(lambda: serving(server)[2] != victim)
    wait_for(lambda: is_ready(server))
    wait_for(lambda: sum(callers.answers) > answered)
    callers.end()
    assert not callers.bad
    assert 0 < callers.broken < 20, "those of the killed process, and no other"
    back = serving(server)[2]
    assert ask_process(back, "GET", "/v2/models/identity_fp32/ready")[0] == 200
    assert ask_process(back, "GET", "/v2/models/slow/ready")[0] == 400
    assert ask_process(back, "GET", "/v2/logging")[1]["log_format"] == "ISO8601"
    # What the dead one had counted when it was last asked is still in the sum.
    after = samples(server, "nv_inference_request_success", model="identity_int32")
    assert sum(after.values()) >= sum(before.values())
    assert sum(samples(server, "isochrone_process_restarts_total").values()) == 1
    assert server.terminate() == 0


def test_a_killed_coordinator(server: ServerProcess) -> None:
    assert ask(server, "POST", "/v2/repository/models/identity_fp32/load")[0] == 200
    first = coordinator(server)
    first.kill()
    # Requests, readiness, index and statistics do not need it.
    infer_over_many_connections(server, "identity_int32", count=8)
    assert ask(server, "GET", "/v2/models/identity_fp32/ready")[0] == 200
    assert ask(server, "GET", "/v2/models/identity_int32/stats")[0] == 200
    # A control call waits for the next one.
    assert ask(server, "POST", "/v2/repository/models/add_sub/load")[0] == 200
    assert coordinator(server).pid != first.pid
    for pid in serving(server).values():
        assert ask_process(pid, "GET", "/v2/models/add_sub/ready")[0] == 200
    # The record is older than the coordinator.
    victim = serving(server)[1]
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: serving(server)[1] != victim)
    assert ask_process(serving(server)[1], "GET", "/v2/models/identity_fp32/ready")[0] == 200
    assert ask_process(serving(server)[1], "GET", "/v2/models/add_sub/ready")[0] == 200
    wait_for(lambda: list(samples(server, "isochrone_processes_ready").values()) == [2])
    assert server.terminate() == 0


@pytest.mark.long
def test_a_stopped_coordinator_is_replaced(server: ServerProcess) -> None:
    first = coordinator(server)
    first.suspend()
    # The call is with the coordinator that hangs, and fails when it is killed; the next one works.
    status, answer = ask(server, "POST", "/v2/repository/models/identity_fp32/load")
    assert status == 503, answer
    first.wait(30)
    assert ask(server, "POST", "/v2/repository/models/identity_fp32/load")[0] == 200
    for pid in serving(server).values():
        assert ask_process(pid, "GET", "/v2/models/identity_fp32/ready")[0] == 200
    assert server.terminate() == 0


@pytest.mark.long
def test_a_stopped_process_is_replaced(server: ServerProcess) -> None:
    victim = psutil.Process(serving(server)[2])
    victim.suspend()
    victim.wait(30)
    wait_for(lambda: serving(server)[2] != victim.pid)
    wait_for(lambda: is_ready(server))
    infer_over_many_connections(server, "identity_int32")
    assert server.terminate() == 0


@pytest.mark.long
def test_no_process_is_replaced_after_all_were_stopped(server: ServerProcess) -> None:
    pids = {**serving(server), 0: coordinator(server).pid}
    everyone = [server.pid, *pids.values()]
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(11)
    for pid in everyone:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: is_ready(server))
    time.sleep(1)
    assert {**serving(server), 0: coordinator(server).pid} == pids
    assert "does not respond" not in server.log_text()
    assert server.terminate() == 0


def test_a_supervisor_that_was_stopped_and_continued_goes_on(server: ServerProcess) -> None:
    """CPython 3.11: an interrupted ``sigtimedwait`` returns a siginfo that is no signal."""
    supervisor, before = psutil.Process(server.pid), serving(server)
    for _ in range(5):
        supervisor.suspend()
        # Longer than it waits at a time: its wait is over when it goes on.
        time.sleep(0.2)
        supervisor.resume()
        time.sleep(0.1)
    # It still starts again what ends.
    os.kill(before[2], signal.SIGKILL)
    wait_for(lambda: serving(server).get(2, before[2]) != before[2])
    assert serving(server)[1] == before[1]
    wait_for(lambda: is_ready(server))
    assert server.terminate() == 0


@pytest.mark.long
def test_a_load_that_a_killed_coordinator_had_begun_is_undone(server: ServerProcess, repository: Path) -> None:
    answers: list[tuple[int, dict[str, str]]] = []
    target = "/v2/repository/models/takes_its_time/load"
    caller = threading.Thread(target=lambda: answers.append(ask(server, "POST", target)))
    caller.start()
    record = Path(private_socket(serving(server)[1])).with_name("control-record.json")
    wait_for(lambda: record.exists() and "takes_its_time" in record.read_text())
    first = coordinator(server)
    first.kill()
    caller.join(30)
    # While it ends, its socket may still take a connection, which breaks then.
    first.wait(30)
    assert answers[0][0] == 503, answers
    (repository / "takes_its_time" / "released").touch()
    # The next coordinator takes it back, where it was finished meanwhile, before it takes another call.
    assert ask(server, "POST", "/v2/repository/models/add_sub/load") == (200, None), server.log_text()
    for pid in serving(server).values():
        assert ask_process(pid, "GET", "/v2/models/takes_its_time/ready")[0] == 400
    assert '"pending":null' in record.read_text()
    assert server.terminate() == 0


def test_a_process_joins_although_a_region_is_gone(
    repository: Path, server_factory: StartServer, shared_memory_prefix: str
) -> None:
    arguments = ("--processes", "2", "--allow-shared-memory", "--model-control-mode", "explicit")
    key = f"{shared_memory_prefix}gone"
    with server_factory(repository, *arguments, check_exit=False) as server:
        regions = [shared_memory.create_shared_memory_region(name, key + name, 64) for name in ("lost", "kept")]
        try:
            for name in ("lost", "kept"):
                value = {"key": key + name, "offset": 0, "byte_size": 64}
                assert ask(server, "POST", f"/v2/systemsharedmemory/region/{name}/register", value)[0] == 200
            # Its owner ends without unregistering it.
            shared_memory.destroy_shared_memory_region(regions.pop(0))
            wait_for(lambda: len(serving(server)) == 2)
            victim = serving(server)[2]
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda: serving(server)[2] != victim)
            wait_for(lambda: is_ready(server))
            for pid in serving(server).values():
                _, found = ask_process(pid, "GET", "/v2/systemsharedmemory/status")
                assert [region["name"] for region in found] == ["kept"]
        finally:
            for region in regions:
                shared_memory.destroy_shared_memory_region(region)
        assert server.terminate() == 0


def test_a_process_joins_although_a_model_cannot_be_loaded_again(tmp_path: Path, server_factory: StartServer) -> None:
    models = write_models(tmp_path / "models", "identity_int32", "identity_fp32")
    arguments = ("--processes", "2", "--model-control-mode", "explicit", "--load-model", "identity_int32")
    with server_factory(models, *arguments, "--no-strict-readiness", check_exit=False) as server:
        assert ask(server, "POST", "/v2/repository/models/identity_fp32/load")[0] == 200
        (models / "identity_fp32" / "config.pbtxt").write_text("nonsense")
        wait_for(lambda: len(serving(server)) == 2)
        victim, other = serving(server)[2], serving(server)[1]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: serving(server)[2] != victim)
        wait_for(lambda: is_ready(server))
        assert ask_process(other, "GET", "/v2/models/identity_fp32/ready")[0] == 200
        assert ask_process(serving(server)[2], "GET", "/v2/models/identity_fp32/ready")[0] == 400
        (row,) = [row for row in ask(server, "POST", "/v2/repository/index")[1] if row["name"] == "identity_fp32"]
        assert row["state"] == "UNAVAILABLE"
        assert row["reason"].startswith("process 2: ")
        infer_over_many_connections(server, "identity_int32")
        assert server.terminate() == 0


def test_a_model_is_not_served_with_other_parameters_than_in_the_other_processes(
    tmp_path: Path, server_factory: StartServer
) -> None:
    """The new process loads it as at the start, and cannot load it as it is in the others."""
    config = """
        backend: "python"
        input { name: "IN" data_type: TYPE_INT32 dims: -1 }
        output { name: "OUT" data_type: TYPE_INT32 dims: -1 }
        """
    write_config(tmp_path / "models" / "choosy", config)
    write_python(
        tmp_path / "models" / "choosy",
        f"""
        from pathlib import Path

        class Model:
            def load(self, context):
                if context.parameters.get("other") and Path({str(tmp_path / "broken")!r}).exists():
                    raise RuntimeError("out of order")

            def infer(self, inputs):
                return {{"OUT": inputs["IN"]}}
        """,
    )
    arguments = ("--processes", "2", "--model-control-mode", "explicit", "--load-model", "choosy")
    with server_factory(tmp_path / "models", *arguments, "--no-strict-readiness", check_exit=False) as server:
        wait_for(lambda: len(serving(server)) == 2)
        tensor = {"data_type": "TYPE_INT32", "dims": [-1]}
        other = {
            "backend": "python",
            "input": [{"name": "IN", **tensor}],
            "output": [{"name": "OUT", **tensor}],
            "parameters": {"other": {"string_value": "1"}},
        }
        value = {"parameters": {"config": json.dumps(other)}}
        assert ask(server, "POST", "/v2/repository/models/choosy/load", value) == (200, None)
        (tmp_path / "broken").touch()
        victim = serving(server)[2]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: serving(server)[2] != victim)
        wait_for(lambda: is_ready(server))
        assert ask_process(serving(server)[1], "GET", "/v2/models/choosy/ready")[0] == 200
        assert ask_process(serving(server)[2], "GET", "/v2/models/choosy/ready")[0] == 400
        (row,) = ask(server, "POST", "/v2/repository/index")[1]
        assert row["state"] == "UNAVAILABLE"
        assert row["reason"].startswith("process 2: ")
        assert "out of order" in row["reason"]
        assert server.terminate() == 0


def test_no_process_outlives_a_killed_supervisor(server: ServerProcess) -> None:
    directory = Path(private_socket(serving(server)[1])).parent
    assert directory.stat().st_mode & 0o777 == 0o700
    children = psutil.Process(server.pid).children(recursive=True)
    assert len(children) >= 3
    server.process.kill()
    server.process.wait()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert not directory.exists()


def _accepts(server: ServerProcess) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.http_port), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


def test_the_end_is_orderly(server: ServerProcess, repository: Path) -> None:
    """SIGTERM: what is in flight is answered, in each process, and nothing is left behind."""
    directory = Path(private_socket(serving(server)[1])).parent
    callers = Callers(server, 6)
    answered: list[int] = []

    def call() -> None:
        with closing(tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60)) as client:
            given = tritonclient.http.InferInput("IN", [1], "INT32")
            given.set_data_from_numpy(np.array([104], np.int32))
            answered.extend(client.infer("held", [given]).as_numpy("OUT").tolist())

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()

    def sent() -> float:
        """Those that run, one in each process at most, and those that wait."""
        running = len(list((repository / "held").glob("waits-*")))
        return running + sum(samples(server, "nv_inference_pending_request_count", model="held").values())

    wait_for(lambda: sent() >= 6)
    wait_for(lambda: min(callers.answers) > 0)
    children = psutil.Process(server.pid).children(recursive=True)
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: not _accepts(server))
    (repository / "held" / "released").touch()
    assert server.process.wait(60) == 0, server.log_text()
    assert not psutil.wait_procs(children, timeout=30)[1]
    for thread in threads:
        thread.join(30)
    callers.end()
    assert answered == [104] * 6
    assert not callers.bad
    assert callers.broken == 0, "each was told that the connection closes, with its last answer"
    assert not directory.exists()
    assert "Traceback" not in server.log_text()


@pytest.mark.long
def test_a_stopped_process_fails_a_load_in_time(server: ServerProcess) -> None:
    victim = serving(server)[2]
    other = serving(server)[1]
    os.kill(victim, signal.SIGSTOP)
    try:
        # On the private socket of the coordinator, since a connection to the port may be the stopped one's.
        status, answer = _load_by_coordinator(other, "identity_fp32")
        assert status >= 500, answer
        assert "process 2 of 2" in answer["error"], answer
        # The coordinator or the supervisor ends it, whichever sees first that it is silent.
        reasons = "no heartbeat", "does not respond", "ended during the call"
        assert any(reason in answer["error"] for reason in reasons), answer
        assert ask_process(other, "GET", "/v2/models/identity_fp32/ready")[0] == 400, "taken back"
    finally:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
    # It was ended, since it could have loaded the model later; the next one is as the others are.
    wait_for(lambda: serving(server)[2] != victim)
    wait_for(lambda: is_ready(server))
    assert ask_process(serving(server)[2], "GET", "/v2/models/identity_fp32/ready")[0] == 400
    assert ask(server, "POST", "/v2/repository/models/identity_fp32/load")[0] == 200
    assert server.terminate() == 0


def _load_by_coordinator(pid: int, model: str) -> tuple[int, dict[str, str]]:
    path = str(Path(private_socket(pid)).with_name("coordinator.sock"))
    connection = UnixConnection(path)
    try:
        connection.request("POST", f"/v2/repository/models/{model}/load")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        connection.close()


def test_a_server_is_not_ready_while_a_process_is_silent(server: ServerProcess) -> None:
    victim, other = serving(server)[2], serving(server)[1]
    wait_for(lambda: is_ready(server))
    # Connections to the process that answers: the kernel gives each to one of them for good.
    connections = []
    for _ in range(40):
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        connection.connect()
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().read() == b""
        connections.append(connection)
    ports = {each.raddr.port for each in psutil.Process(other).net_connections("tcp") if each.raddr}
    (mine, *_) = [each for each in connections if each.sock.getsockname()[1] in ports]

    def ready() -> bool:
        mine.request("GET", "/v2/health/ready")
        answer = mine.getresponse()
        answer.read()
        return answer.status == 200

    os.kill(victim, signal.SIGSTOP)
    try:
        wait_for(lambda: not ready())
    finally:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)
    wait_for(ready)
    for connection in connections:
        connection.close()
    assert server.terminate() == 0
