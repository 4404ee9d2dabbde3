"""A real Envoy that asks our picker, in front of real workers: every body mode, hints, rejections, failures."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h2.connection
import h2.events
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from picking_envoy import Envoy, start_envoy, until
from tritonclient.utils import InferenceServerException
from worker_models import write_for_worker

from bench.gateway.proxies.envoy import binary
from bench.worker.peers.process import PeerUnavailable
from picker_process import PickerProcess, start_picker
from server_process import ServerProcess, StartServer

pytestmark = pytest.mark.peers

_MODES = ("NONE", "STREAMED", "BUFFERED", "FULL_DUPLEX_STREAMED")
_DESTINATION = "x-gateway-destination-endpoint"
_JSON = json.dumps({"inputs": [{"name": "INPUT0", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}]}).encode()


@pytest.fixture(scope="module", autouse=True)
def _envoy_is_installed() -> None:
    try:
        binary()
    except PeerUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def workers(
    server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two workers, where ``identity`` has versions 1 and 2."""
    repository = write_for_worker(tmp_path_factory.mktemp("picked") / "models")
    configuration = repository / "identity" / "config.pbtxt"
    configuration.write_text(configuration.read_text() + "version_policy { all {} }\n")
    second = repository / "identity" / "2"
    second.mkdir()
    (second / "model.py").write_text((repository / "identity" / "1" / "model.py").read_text())
    with server_factory(repository) as one, server_factory(repository) as other:
        yield one, other


def _tensor(kind: Any, values: np.ndarray[Any, Any]) -> Any:
    tensor = kind.InferInput("INPUT0", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    return tensor


def _infer(
    port: int, model: str = "identity", headers: dict[str, str] | None = None, body: bytes = _JSON
) -> tuple[int, dict[str, str], bytes]:
    """One request over HTTP: status, headers and body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", body, headers or {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def _runs(worker: ServerProcess, model: str) -> int:
    """Requests that a worker has seen for a model, whatever became of them."""
    connection = http.client.HTTPConnection("127.0.0.1", worker.http_port, timeout=60)
    try:
        connection.request("GET", f"/v2/models/{model}/stats")
        stats = json.loads(connection.getresponse().read())["model_stats"]
    finally:
        connection.close()
    return sum(one["inference_stats"][kind]["count"] for one in stats for kind in ("success", "fail"))


@pytest.mark.parametrize("mode", _MODES)
def test_every_body_mode(workers: tuple[ServerProcess, ...], tmp_path: Path, mode: str) -> None:
    sizes = (4, 100_000, 1_000_000) if mode != "BUFFERED" else (4, 100_000)  # Envoy's own limit is 1 MiB
    with (
        start_picker(workers, tmp_path / "picker.log") as picker,
        start_envoy(tmp_path, picker.picker_port, mode) as envoy,
    ):
        with triton_http.InferenceServerClient(envoy.url) as client:
            assert client.is_server_ready()
            assert client.is_model_ready("identity")
            for size in sizes:
                given = np.arange(size, dtype=np.float32)
                result = client.infer("identity", [_tensor(triton_http, given)])
                assert (result.as_numpy("OUTPUT0") == given).all()
                # Nobody asked for a version: the picker did.
                assert result.get_response()["model_version"] == "2"
            older = client.infer("identity", [_tensor(triton_http, given)], model_version="1")
            assert older.get_response()["model_version"] == "1"
            with pytest.raises(InferenceServerException, match="unknown model"):
                client.infer("nobody", [_tensor(triton_http, given)])
        _check_grpc(envoy, mode, sizes)
        until(lambda: picker.in_flight() == 0)


def _check_grpc(envoy: Envoy, mode: str, sizes: tuple[int, ...]) -> None:
    with triton_grpc.InferenceServerClient(envoy.url) as client:
        assert client.is_server_ready()
        if mode in ("NONE", "STREAMED"):
            values = np.ones(2, np.float32)
            with pytest.raises(InferenceServerException, match="request_body_mode"):
                client.infer("identity", [_tensor(triton_grpc, values)])
            client.infer("identity", [_tensor(triton_grpc, values)], headers={"x-isochrone-model": "identity"})
            return
        for size in sizes:
            given = np.arange(size, dtype=np.float32)
            result = client.infer("identity", [_tensor(triton_grpc, given)])
            assert (result.as_numpy("OUTPUT0") == given).all()
            assert result.get_response().model_version == "2"
        with pytest.raises(InferenceServerException, match="unknown model") as caught:
            client.infer("nobody", [_tensor(triton_grpc, given)])
        assert "NOT_FOUND" in str(caught.value.status())
        if mode == "FULL_DUPLEX_STREAMED":
            _check_stream(client)


def _check_stream(client: Any) -> None:
    answers: list[Any] = []
    came = threading.Semaphore(0)

    def took(result: Any, error: Any) -> None:
        answers.append(error or result.get_response().model_version)
        came.release()

    client.start_stream(took)
    for _ in range(3):
        client.async_stream_infer("identity", [_tensor(triton_grpc, np.ones(2, np.float32))])
        assert came.acquire(timeout=60)
    client.stop_stream()
    assert answers == ["2"] * 3


@pytest.mark.parametrize("form", ["list", "string"])
def test_subset_hints(workers: tuple[ServerProcess, ...], tmp_path: Path, form: str) -> None:
    chosen = workers[1]

    def hint(filters: list[dict[str, Any]], address: str) -> None:
        value = {"x-gateway-destination-endpoint-subset": [address] if form == "list" else f"{address}, 10.9.9.9:1"}
        filters.insert(
            0,
            {
                "name": "envoy.filters.http.set_metadata",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
                    "metadata": [{"metadata_namespace": "envoy.lb.subset_hint", "value": value}],
                },
            },
        )

    with start_picker(workers, tmp_path / "picker.log") as picker:
        before = [_runs(worker, "identity") for worker in workers]
        with start_envoy(tmp_path, picker.picker_port, change=lambda all_: hint(all_, chosen.http_url)) as envoy:
            for _ in range(10):
                assert _infer(envoy.port)[0] == 200
        assert [_runs(worker, "identity") for worker in workers] == [before[0], before[1] + 10]
        with start_envoy(tmp_path, picker.picker_port, change=lambda all_: hint(all_, "10.9.9.9:1")) as envoy:
            status, headers, body = _infer(envoy.port)
        assert (status, headers["x-llm-d-request-dropped-reason"]) == (503, "rejected-no-endpoints")
        assert "identity" in json.loads(body)["error"]
        assert [_runs(worker, "identity") for worker in workers] == [before[0], before[1] + 10]


def test_a_quota_is_answered_429(workers: tuple[ServerProcess, ...], tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("quota: {rate: 0.001, burst: 1}\n")
    with (
        start_picker(workers, tmp_path / "picker.log", "--rules", str(rules)) as picker,
        start_envoy(tmp_path, picker.picker_port) as envoy,
    ):
        assert _infer(envoy.port)[0] == 200
        status, headers, body = _infer(envoy.port)
        assert (status, headers["x-llm-d-request-dropped-reason"]) == (429, "rejected-saturated")
        assert int(headers["retry-after"]) > 0
        assert json.loads(body)["error"]


def test_a_deadline_that_nobody_meets_is_refused_before_envoy_forwards(
    workers: tuple[ServerProcess, ...], tmp_path: Path
) -> None:
    (worker, *_) = workers
    with start_picker([worker], tmp_path / "picker.log") as picker, start_envoy(tmp_path, picker.picker_port) as envoy:
        refused = 0
        for _ in range(20):
            # A run takes 300 ms, which the worker reports with its answers. Some late requests are sent nevertheless:
            # they ask again.
            assert _infer(envoy.port, "slow")[0] == 200
            before, refused_before = _runs(worker, "slow"), refused
            late = [_infer(envoy.port, "slow", {"x-request-timeout-ms": "20"}) for _ in range(10)]
            assert {status for status, _, _ in late} == {504}
            for _, headers, body in late:
                if b"no worker can meet the deadline" in body:
                    refused += 1
                    assert headers["x-llm-d-request-dropped-reason"] == "rejected-ttl-expired"
            assert _runs(worker, "slow") - before <= len(late) - (refused - refused_before)
            if refused:
                break
        assert refused


def test_a_deadline_that_passes_is_answered_while_the_worker_still_works(
    workers: tuple[ServerProcess, ...], tmp_path: Path
) -> None:
    (worker, *_) = workers
    with start_picker([worker], tmp_path / "picker.log") as picker, start_envoy(tmp_path, picker.picker_port) as envoy:
        # The worker keeps the same deadline, unless it hangs.
        worker.process.send_signal(signal.SIGSTOP)
        try:
            status, headers, body = _infer(envoy.port, "slow", {"x-request-timeout-ms": "100"})
        finally:
            worker.process.send_signal(signal.SIGCONT)
        assert (status, headers["x-llm-d-request-dropped-reason"]) == (504, "rejected-ttl-expired")
        # The picker's answer: to a worker's, Envoy adds the time that it took.
        assert "x-envoy-upstream-service-time" not in headers
        assert b"no answer within" in body
        until(lambda: picker.in_flight() == 0)


@pytest.mark.parametrize("mode", ["BUFFERED", "FULL_DUPLEX_STREAMED"])
def test_a_deadline_that_passes_while_the_body_is_awaited(
    workers: tuple[ServerProcess, ...], tmp_path: Path, mode: str
) -> None:
    with (
        start_picker(workers, tmp_path / "picker.log") as picker,
        start_envoy(tmp_path, picker.picker_port, mode) as envoy,
    ):
        connection = http.client.HTTPConnection("127.0.0.1", envoy.port, timeout=60)
        connection.putrequest("POST", "/v2/models/identity/infer")
        connection.putheader("content-length", str(len(_JSON)))
        connection.putheader("x-request-timeout-ms", "50")
        connection.endheaders(_JSON[:10])
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("x-llm-d-request-dropped-reason")) == (504, "rejected-ttl-expired")
        connection.close()
        assert _infer(envoy.port)[0] == 200


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("is_removed_first", [True, False])
def test_a_forged_destination_has_no_effect(
    workers: tuple[ServerProcess, ...], tmp_path: Path, is_removed_first: bool, mode: str
) -> None:
    def change(filters: list[dict[str, Any]]) -> None:
        if not is_removed_first:
            assert filters.pop(0)["name"] == "envoy.filters.http.header_mutation"

    with (
        socket.create_server(("127.0.0.1", 0)) as trap,
        # By name: the picker must find the address out.
        start_picker([f"localhost:{one.http_port}" for one in workers], tmp_path / "picker.log") as picker,
        start_envoy(tmp_path, picker.picker_port, mode, change=change) as envoy,
    ):
        trap.setblocking(False)
        forged = {_DESTINATION: f"127.0.0.1:{trap.getsockname()[1]}"}
        for _ in range(5):
            assert _infer(envoy.port, headers=forged)[0] == 200
        for _ in range(3):
            # The worker's 400, or the picker's own where it waits for a body.
            assert _status_without_body(envoy.port, forged) == 400
        with pytest.raises(BlockingIOError):
            trap.accept()


@pytest.mark.parametrize("mode", _MODES)
def test_requests_without_a_body_do_not_pass_admission_by(
    workers: tuple[ServerProcess, ...], tmp_path: Path, mode: str
) -> None:
    """Headers and trailers, and no body between them that Envoy would show."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("quota: {rate: 0.001, burst: 1}\n")
    with (
        start_picker(workers, tmp_path / "picker.log", "--rules", str(rules)) as picker,
        start_envoy(tmp_path, picker.picker_port, mode, fallback=workers) as envoy,
    ):
        assert _infer(envoy.port)[0] == 200
        before = [_runs(worker, "identity") for worker in workers]
        assert {_status_without_body(envoy.port, {}) for _ in range(3)} <= {400, 429}
        assert [_runs(worker, "identity") for worker in workers] == before
        # Not even with an error.
        assert "cluster.fallback.upstream_rq_total: 0" in envoy.stats()


def _status_without_body(port: int, headers: dict[str, str]) -> int:
    """The status of a request of headers and trailers."""
    connection = h2.connection.H2Connection()
    connection.initiate_connection()
    pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/v2/models/identity/infer")]
    connection.send_headers(1, [*pseudo, *headers.items()])
    connection.send_headers(1, [("x-checksum", "0")], end_stream=True)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(connection.data_to_send())
        while data := client.recv(65536):
            for event in connection.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    return int(dict(event.headers)[b":status"])
            client.sendall(connection.data_to_send())
    raise AssertionError("Envoy closed the connection")


@pytest.mark.parametrize("is_open", [True, False])
def test_a_picker_that_is_killed(workers: tuple[ServerProcess, ...], tmp_path: Path, is_open: bool) -> None:
    with start_picker(workers, tmp_path / "picker.log", check_exit=False) as picker:
        port = picker.picker_port
        with start_envoy(tmp_path, port, fallback=workers if is_open else ()) as envoy:
            assert _infer(envoy.port)[0] == 200
            picker.process.send_signal(signal.SIGKILL)
            picker.process.wait()
            for _ in range(5):
                status = _infer(envoy.port)[0]
                assert status == 200 if is_open else status in (500, 503)
            with start_picker(workers, tmp_path / "second.log", port=port) as second:
                until(lambda: _infer(envoy.port)[0] == 200 and _total(second, "requests") > 0)


def _total(picker: PickerProcess, name: str) -> float:
    """A counter of the picker, over all models."""
    lines = picker.metrics().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"isochrone_gateway_{name}_total{{"))


@pytest.mark.parametrize("mode", ["NONE", "FULL_DUPLEX_STREAMED"])
def test_clients_that_go_away_leave_nothing_in_flight(
    workers: tuple[ServerProcess, ...], tmp_path: Path, mode: str
) -> None:
    with (
        start_picker(workers, tmp_path / "picker.log") as picker,
        start_envoy(tmp_path, picker.picker_port, mode) as envoy,
    ):
        head = b"POST /v2/models/slow/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(_JSON)
        sockets = [socket.create_connection(("127.0.0.1", envoy.port)) for _ in range(20)]
        for number, each in enumerate(sockets):
            # Every other one goes while its body is on its way.
            each.sendall(head + (_JSON if number % 2 else _JSON[:10]))
        until(lambda: picker.in_flight() > 0)
        for each in sockets:
            each.close()
        until(lambda: picker.in_flight() == 0)
        assert _infer(envoy.port)[0] == 200


def test_a_worker_that_dies_is_left_out(
    server_factory: StartServer, workers: tuple[ServerProcess, ...], tmp_path: Path, repository: Path
) -> None:
    with (
        server_factory(repository, check_exit=False) as mortal,
        start_picker((mortal, workers[0]), tmp_path / "picker.log") as picker,
        start_envoy(tmp_path, picker.picker_port) as envoy,
    ):
        assert {_infer(envoy.port)[0] for _ in range(10)} == {200}
        mortal.process.send_signal(signal.SIGKILL)
        mortal.process.wait()
        gone = f'worker_healthy{{worker="{mortal.http_url}"}} 0'
        until(lambda: _infer(envoy.port)[0] in (200, 503) and gone in picker.metrics())
        assert {_infer(envoy.port)[0] for _ in range(20)} == {200}


def test_connections_that_envoy_cannot_make_count_as_failures(
    server_factory: StartServer, workers: tuple[ServerProcess, ...], tmp_path: Path, repository: Path
) -> None:
    """Where health checks are rare, the circuit breaker goes by what Envoy answers in the worker's place."""
    with (
        server_factory(repository, check_exit=False) as mortal,
        start_picker((mortal, workers[0]), tmp_path / "picker.log", "--probe-interval", "600") as picker,
        start_envoy(tmp_path, picker.picker_port) as envoy,
    ):
        assert {_infer(envoy.port)[0] for _ in range(10)} == {200}
        mortal.process.send_signal(signal.SIGKILL)
        mortal.process.wait()
        statuses = [_infer(envoy.port)[0] for _ in range(200)]
        assert set(statuses) <= {200, 503}
        assert statuses.count(503) <= 20
        assert _total(picker, "failures") == statuses.count(503)
