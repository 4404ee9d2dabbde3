"""Real workers and gateways with an audit log: what they record, what they refuse, and what a kill leaves."""

from __future__ import annotations

import http.client
import json
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from gateway_process import GatewayProcess, StartGateway
from isochrone.secure.audit.keys import read_key
from isochrone.secure.audit.reading import merged
from isochrone.secure.audit.records import Record
from isochrone.secure.audit.segments import segments_in
from isochrone.secure.audit.verification import Verdict, verify
from sample_models import write_models
from server_process import ServerProcess, StartServer
from watching import wait_for

ROW = [float(each) for each in range(16)]
BODY: dict[str, Any] = {
    "inputs": [{"name": f"INPUT{number}", "datatype": "FP32", "shape": [1, 16], "data": ROW} for number in range(2)]
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer) -> Iterator[ServerProcess]:
    repository = write_models(tmp_path_factory.mktemp("audited") / "models", "add_sub")
    with server_factory(repository) as server:
        yield server


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "audit.key"
    file.write_text("0123456789abcdef0123456789abcdef")
    return file


def ask(
    server: ServerProcess, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def infer(server: ServerProcess, request_id: str = "", agent: str = "robot-17", model: str = "add_sub") -> int:
    return ask(server, "POST", f"/v2/models/{model}/infer", {"id": request_id, **BODY}, {"x-agent-id": agent})[0]


def records(log: Path, action: str = "") -> list[Record]:
    return [record for _, record in merged([log]) if not action or record.action == action]


def verdict_of(log: Path, key: Path) -> Verdict:
    return verify(log, read_key(str(key)))


@contextmanager
def full_disk(server: ServerProcess, log: Path) -> Iterator[None]:
    """No file of the process may grow beyond its log's present size."""
    size = segments_in(log)[-1].path.stat().st_size
    assert size > server.log_path.stat().st_size, "its other files must still grow"
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (soft, hard))


def flags(directory: Path, key: Path, name: str, *more: str) -> tuple[str, ...]:
    return ("--audit", str(directory), "--audit-key", str(key), "--name", name, *more)


def grpc_infer(url: str, request_id: str, agent: str, model: str = "add_sub") -> None:
    inputs = []
    for number in range(2):
        tensor = tritonclient.grpc.InferInput(f"INPUT{number}", [1, 16], "FP32")
        tensor.set_data_from_numpy(np.array([ROW], np.float32))
        inputs.append(tensor)
    with tritonclient.grpc.InferenceServerClient(url) as client:
        client.infer(model, inputs, request_id=request_id, headers={"x-agent-id": agent})


def test_a_gateway_records_which_agent_called_which_model_when(
    worker: ServerProcess, gateway_factory: StartGateway, tmp_path: Path, key: Path
) -> None:
    log = tmp_path / "audit" / "gw-1"
    redact = ("--audit-requests", "--audit-redact", "agent=hash,address=truncate")
    with gateway_factory([worker], *flags(tmp_path / "audit", key, "gw-1", *redact)) as gateway:
        assert infer(gateway, "one") == 200
        grpc_infer(gateway.http_url, "two", "robot-17")
        grpc_infer(gateway.http_url, "three", "robot-18")
        assert infer(gateway, "four", model="add_sub/versions/7") == 404
        assert ask(gateway, "POST", "/v2/models/add_sub/infer", {"id": "five", "inputs": []})[0] == 400
        # What only reads leaves nothing.
        assert ask(gateway, "GET", "/v2/models/add_sub")[0] == 200
    found = {record.details["request_id"]: record for record in records(log, "infer")}
    assert {*found} == {"one", "two", "three", "four", "five"}
    one, two, three, five = (found[name] for name in ("one", "two", "three", "five"))
    assert (one.object, one.outcome, one.details["version"]) == ("add_sub", "done", "1")
    assert one.actor == {"name": "anonymous", "kind": "anonymous", "address": "127.0.0.0"}
    assert one.details["agent"] == two.details["agent"] != three.details["agent"]
    assert one.details["agent"].startswith("hash:")
    assert (two.details["protocol"], two.details["status"]) == ("grpc", "0")
    assert five.outcome == "failed"
    text = "".join(segment.path.read_text() for segment in segments_in(log))
    assert "robot-1" not in text
    assert "FP32" not in text
    verdict = verdict_of(log, key)
    assert verdict.is_intact
    assert verdict.is_sealed
    assert [record.action for record in records(log)][-1] == "audit.stop"
    # The log of the process says where the audit log ended.
    heads = [event["head"] for event in gateway.log_events() if str(event.get("event", "")).startswith("the audit log")]
    assert len(heads) == 2
    assert heads[1] == verdict.head
    assert verify(log, read_key(str(key)), frozenset(heads)).is_intact


def test_control_calls_through_a_gateway_are_recorded_before_they_take_effect(
    worker: ServerProcess, gateway_factory: StartGateway, tmp_path: Path, key: Path
) -> None:
    log = tmp_path / "audit" / "gw-1"
    with gateway_factory([worker], *flags(tmp_path / "audit", key, "gw-1")) as gateway:
        assert infer(gateway, "one") == 200
        assert ask(gateway, "POST", "/v2/logging", {"log_verbose_level": 1})[0] == 200
        assert ask(gateway, "GET", "/v2/logging")[0] == 200
        # The worker does not allow it.
        assert ask(gateway, "POST", "/v2/repository/models/add_sub/unload", {})[0] == 503
        with tritonclient.grpc.InferenceServerClient(gateway.http_url) as client:
            assert client.get_log_settings().settings["log_verbose_level"].uint32_param == 1
            client.update_log_settings({"log_verbose_level": 0})
            with pytest.raises(InferenceServerException):
                client.load_model("add_sub", config="{}")
    changes = [(each.action, each.object, each.outcome) for each in records(log) if not each.action.startswith("audit")]
    assert changes == [
        ("log.set", "", "attempt"),
        ("log.set", "", "done"),
        ("model.unload", "add_sub", "attempt"),
        ("model.unload", "add_sub", "failed"),
        ("log.set", "", "attempt"),
        ("log.set", "", "done"),
        ("model.load", "add_sub", "attempt"),
        ("model.load", "add_sub", "failed"),
    ]
    first, second = records(log, "log.set")[:2]
    assert first.details["settings"] == {"log_verbose_level": "1"}
    assert second.details["attempt"] == first.sequence
    assert records(log, "model.load")[0].details["parameters"] == ["config"]
    assert verdict_of(log, key).is_intact


def test_a_worker_records_changes_and_requests_and_refuses_both_on_a_full_disk(
    server_factory: StartServer, tmp_path: Path, key: Path
) -> None:
    log = tmp_path / "audit" / "w-1"
    repository = write_models(tmp_path / "models", "add_sub", "pipeline")
    control = ("--model-control-mode", "explicit", "--load-model", "*", "--allow-shared-memory", "--audit-requests")
    with server_factory(repository, *flags(tmp_path / "audit", key, "w-1", *control)) as server:
        assert infer(server, "one") == 200
        grpc_infer(server.grpc_url, "two", "robot-18")
        assert infer(server, "three", model="nobody") == 404
        assert ask(server, "POST", "/v2/models/pipeline/infer", {"id": "four", "inputs": []})[0] == 400
        assert ask(server, "POST", "/v2/repository/models/add_sub/unload", {})[0] == 200
        assert infer(server, "five") in (400, 404, 503)
        assert ask(server, "POST", "/v2/repository/models/add_sub/load", {})[0] == 200
        gone = {"key": "/nobody", "byte_size": 64}
        assert ask(server, "POST", "/v2/systemsharedmemory/region/frame/register", gone)[0] == 400
        for number in range(200):
            assert infer(server, f"more-{number}") == 200
        wait_for(lambda: len(records(log, "infer")) >= 204)
        with full_disk(server, log):
            status, text = ask(server, "POST", "/v2/repository/models/add_sub/unload", {})
            assert status == 503
            assert "audit log cannot be written" in text
            assert str(log) in text
            # The model is still there: this request was the last before the failure is known.
            infer(server, "last")
            wait_for(lambda: ask(server, "GET", "/v2/health/ready")[0] == 400)
            status, text = ask(server, "POST", "/v2/models/add_sub/infer", BODY)
            assert status == 503
            assert "audit log cannot be written" in text
            with pytest.raises(InferenceServerException, match="audit log cannot be written"):
                grpc_infer(server.grpc_url, "refused", "robot-18")
        wait_for(lambda: ask(server, "GET", "/v2/health/ready")[0] == 200)
        assert infer(server, "after") == 200
    found = {record.details.get("request_id", ""): record for record in records(log, "infer")}
    assert {*found} >= {"one", "two", "three", "four", "five", "last", "after"}
    assert "refused" not in found
    assert found["two"].details["agent"] == "robot-18"
    assert (found["one"].outcome, found["one"].details["version"]) == ("done", "1")
    assert found["four"].outcome == "failed"
    changes = [(each.action, each.outcome) for each in records(log) if "." in each.action and each.outcome != "done"]
    assert changes.count(("model.unload", "attempt")) == 1
    assert ("shared_memory.register", "failed") in changes
    assert verdict_of(log, key).is_intact


def test_a_gateway_on_a_full_disk_is_not_ready_and_refuses(
    worker: ServerProcess, gateway_factory: StartGateway, tmp_path: Path, key: Path
) -> None:
    log = tmp_path / "audit" / "gw-1"
    with gateway_factory([worker], *flags(tmp_path / "audit", key, "gw-1", "--audit-requests")) as gateway:
        for number in range(100):
            assert infer(gateway, f"r{number}") == 200
        wait_for(lambda: len(records(log, "infer")) == 100)
        with full_disk(gateway, log):
            assert ask(gateway, "POST", "/v2/logging", {"log_verbose_level": 1})[0] == 503
            infer(gateway, "last")
            wait_for(lambda: ask(gateway, "GET", "/v2/health/ready")[0] == 400)
            status, text = ask(gateway, "POST", "/v2/models/add_sub/infer", BODY)
            assert status == 503
            assert "audit log cannot be written" in text
        # Nothing of the refused change took effect.
        assert json.loads(ask(gateway, "GET", "/v2/logging")[1])["log_verbose_level"] == 0
        wait_for(lambda: ask(gateway, "GET", "/v2/health/ready")[0] == 200)
        assert infer(gateway, "after") == 200
    found = [record.details.get("request_id", "") for record in records(log, "infer")]
    assert found == [*(f"r{number}" for number in range(100)), "last", "after"]
    assert verdict_of(log, key).is_intact


def test_a_removed_directory_refuses_too(
    worker: ServerProcess, gateway_factory: StartGateway, tmp_path: Path, key: Path
) -> None:
    log = tmp_path / "audit" / "gw-1"
    with gateway_factory([worker], *flags(tmp_path / "audit", key, "gw-1", "--audit-requests")) as gateway:
        assert infer(gateway, "one") == 200
        log.rename(tmp_path / "audit" / "moved")
        infer(gateway, "two")
        wait_for(lambda: infer(gateway, "three") == 503)
        (tmp_path / "audit" / "moved").rename(log)
        wait_for(lambda: infer(gateway, "four") == 200)
    assert verdict_of(log, key).is_intact


def _load(gateway: GatewayProcess, name: str, count: list[int], stop: threading.Event) -> None:
    """Requests one after the other, until the gateway is gone. ``count``: those that were answered."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=60)
    try:
        while not stop.is_set():
            connection.request("POST", "/v2/models/add_sub/infer", json.dumps({"id": f"{name}-{count[0]}", **BODY}))
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            count[0] += 1
    except (OSError, http.client.HTTPException):
        pass
    finally:
        connection.close()


def test_a_kill_loses_one_batch_at_most(
    worker: ServerProcess, gateway_factory: StartGateway, tmp_path: Path, key: Path
) -> None:
    """Several times in a row, over one log."""
    directory = tmp_path / "audit"
    log = directory / "gw-1"
    arguments = flags(directory, key, "gw-1", "--audit-requests")

    def written(turn: int, number: int) -> int:
        names = (record.details.get("request_id", "") for record in records(log, "infer"))
        return sum(name.startswith(f"t{turn}-{number}-") for name in names)

    for turn in range(3):
        with gateway_factory([worker], *arguments, check_exit=False) as gateway:
            counts = [[0] for _ in range(4)]
            stop = threading.Event()
            threads = [
                threading.Thread(target=_load, args=(gateway, f"t{turn}-{number}", counts[number], stop))
                for number in range(4)
            ]
            for thread in threads:
                thread.start()
            wait_for(lambda: sum(count[0] for count in counts) > 300)  # noqa: B023
            before = [count[0] for count in counts]
            # Batches are written while requests go on: these are on the disk, in spite of the kill.
            wait_for(lambda: all(written(turn, each) >= before[each] for each in range(4)))  # noqa: B023
            gateway.process.send_signal(signal.SIGKILL)
            gateway.process.wait()
            stop.set()
            for thread in threads:
                thread.join()
        found = [record.details.get("request_id", "") for record in records(log, "infer")]
        for number in range(4):
            own = [each for each in found if each.startswith(f"t{turn}-{number}-")]
            # In their order, and none but the last ones is missing.
            assert own == [f"t{turn}-{number}-{index}" for index in range(len(own))]
            assert before[number] <= len(own) <= counts[number][0] + 1
    with gateway_factory([worker], *arguments):
        pass
    verdict = verdict_of(log, key)
    assert verdict.is_intact, verdict.findings
    assert len(records(log, "audit.start")) == 4
    assert len(records(log, "audit.stop")) == 1


def test_two_processes_pointed_at_one_log(
    worker: ServerProcess, gateway_factory: StartGateway, tmp_path: Path, key: Path
) -> None:
    arguments = flags(tmp_path / "audit", key, "gw-1")
    with gateway_factory([worker], *arguments):
        command = [str(Path(sys.executable).with_name("isochrone")), "gateway", "--listen", "127.0.0.1:0"]
        second = subprocess.run(
            [*command, "--metrics-port", "-1", "--upstream", worker.http_url, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert second.returncode == 1
        assert "--audit" in second.stderr
        assert "another process has" in second.stderr
        with gateway_factory([worker], *flags(tmp_path / "audit", key, "gw-2")):
            pass
    assert verdict_of(tmp_path / "audit" / "gw-1", key).is_intact
    assert verdict_of(tmp_path / "audit" / "gw-2", key).is_intact


def test_each_process_of_a_group_has_a_log(worker: ServerProcess, tmp_path: Path, key: Path) -> None:
    log_path = tmp_path / "group.log"
    command = [str(Path(sys.executable).with_name("isochrone")), "gateway", "--listen", "127.0.0.1:0", "--log-json"]
    arguments = flags(tmp_path / "audit", key, "gw-1", "--audit-requests", "--processes", "2")
    with log_path.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--metrics-port", "-1", "--upstream", worker.http_url, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    gateway = GatewayProcess(process, log_path)
    try:
        gateway.wait_ready()
        for number in range(20):
            assert infer(gateway, f"r{number}") == 200
        assert gateway.terminate() == 0
    finally:
        gateway.kill()
    logs = [tmp_path / "audit" / f"gw-1.{number}" for number in (1, 2)]
    assert sorted(each.name for each in (tmp_path / "audit").iterdir()) == ["gw-1.1", "gw-1.2"]
    found = [record.details["request_id"] for _, record in merged(logs) if record.action == "infer"]
    assert sorted(found) == sorted(f"r{number}" for number in range(20))
    assert all(verdict_of(log, key).is_intact for log in logs)


def test_a_fleets_worker_records_who_it_refused(server_factory: StartServer, tmp_path: Path, key: Path) -> None:
    log = tmp_path / "audit" / "w-1"
    repository = write_models(tmp_path / "models", "add_sub")
    member = ("--store", f"sqlite:{tmp_path / 'fleet.db'}", "--model-control-mode", "explicit", "--load-model", "*")
    with server_factory(repository, *flags(tmp_path / "audit", key, "w-1", *member)) as server:
        path = "/v2/repository/models/add_sub/unload"
        assert ask(server, "POST", path, {})[0] == 403
        assert ask(server, "POST", path, {}, {"x-isochrone-control": "guessed"})[0] == 403
        assert ask(server, "POST", "/v2/trace/setting", {"trace_rate": "5"})[0] == 403
        with (
            tritonclient.grpc.InferenceServerClient(server.grpc_url) as client,
            pytest.raises(InferenceServerException, match="belongs to a fleet"),
        ):
            client.unload_model("add_sub")
        assert infer(server) == 200
    changes = [(each.action, each.outcome) for each in records(log) if not each.action.startswith("audit")]
    # Nothing of it happened, so that there are no attempts.
    assert changes == [(action, "refused") for action in ("model.unload", "model.unload", "trace.set", "model.unload")]
    assert {each.actor["kind"] for each in records(log, "model.unload")} == {"anonymous"}
    assert verdict_of(log, key).is_intact
