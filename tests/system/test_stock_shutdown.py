"""SIGTERM under load from stock clients: whatever was accepted is answered, and the server ends with status 0."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stock_clients import KINDS, StockClient
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway_process import StartGateway
from sample_models import HELD, write_models
from server_process import StartServer
from watching import load_now, release_until, wait_for


class Load(threading.Thread):
    """One client in a loop until the server is gone; notes what it saw."""

    def __init__(self, client: StockClient) -> None:
        super().__init__()
        self.client = client
        self.answered = 0
        self.wrong: list[Any] = []
        self.ends: list[str] = []

    def run(self) -> None:
        sent = 0
        while not self.ends:
            sent += 1
            values = np.array([sent], np.int32)
            try:
                back = self.client.infer("identity_int32", {"IN": values}).as_numpy("OUT")
            except Exception as error:
                self.ends.append(f"{type(error).__name__}: {error}")
            else:
                self.answered += 1
                if back.tolist() != [sent]:
                    self.wrong.append((sent, back))


def test_under_load(tmp_path: Path, server_factory: StartServer) -> None:
    repository = write_models(tmp_path / "models", "identity_int32", "slow")
    with server_factory(repository) as server:
        loads = [Load(StockClient(kind, server)) for kind in KINDS]
        for load in loads:
            load.start()
        wait_for(lambda: all(load.answered > 20 for load in loads))
        answers: list[Any] = []
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as raw:
            each = tritonclient.grpc.InferInput("MILLISECONDS", [1, 1], "INT32")
            each.set_data_from_numpy(np.array([[HELD]], np.int32))
            calls = [
                raw.async_infer("slow", [each], callback=lambda result, error: answers.append(error or result))
                for _ in range(4)
            ]
            wait_for(lambda: load_now(server)["queue_depth"] >= 3)
            server.process.send_signal(signal.SIGTERM)
            # Accepted before the signal: all four are answered, however much later.
            release_until(lambda: len(answers) == len(calls), repository)
        assert [answer.as_numpy("SLEPT")[0, 0] for answer in answers] == [HELD] * 4
        for load in loads:
            load.join(60)
            assert not load.wrong
            assert not load.is_alive()
            load.client.close()
        assert server.process.wait(60) == 0
    for load in loads:
        # The next connection is refused; no request is cut off, and none fails for a fault of the server.
        (end,) = load.ends
        assert "refused" in end or "Cannot connect" in end, f"{load.client.kind}: {end}"


def test_a_stream_is_finished(tmp_path: Path, server_factory: StartServer) -> None:
    repository = write_models(tmp_path / "models", "repeat_async")
    request = service_pb2.ModelInferRequest(model_name="repeat_async", id="s")
    request.inputs.add(name="IN", datatype="INT32", shape=[20])
    request.inputs.add(name="DELAY", datatype="INT32", shape=[1])
    request.raw_input_contents.extend([np.arange(20, dtype=np.int32).tobytes(), np.array([20], np.int32).tobytes()])
    with server_factory(repository) as server, grpc.insecure_channel(server.grpc_url) as channel:
        answers = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request]), timeout=60)
        first = next(answers)
        server.process.send_signal(signal.SIGTERM)
        rest = list(answers)
        values = [
            int(np.frombuffer(each.infer_response.raw_output_contents[0], np.int32)[0]) for each in [first, *rest]
        ]
        assert values == list(range(20))
        assert server.process.wait(60) == 0


def test_idle_connections_do_not_hold_it_up(tmp_path: Path, server_factory: StartServer) -> None:
    repository = write_models(tmp_path / "models", "identity_int32")
    # A grace period longer than any test may take: waiting for it would fail.
    with server_factory(repository, "--exit-timeout-secs", "1000") as server:
        clients = [StockClient(kind, server) for kind in KINDS]
        for client in clients:
            client.infer("identity_int32", {"IN": np.array([1], np.int32)})
        assert server.terminate() == 0
        for client in clients:
            client.close()


class OpenCall:
    """A streaming call that nobody asks anything on any more; notes what came and how it ended."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.answers: list[Any] = []
        self.status: grpc.StatusCode | None = None
        self.details = ""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for answer in self.call:
                self.answers.append(answer)
        except grpc.RpcError as error:
            self.status, self.details = error.code(), error.details()

    def wait(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def idle_calls(channel: grpc.Channel, done: threading.Event) -> tuple[OpenCall, OpenCall]:
    """An inference stream that has had its answer, and a health watch; the client ends neither."""

    def requests() -> Any:
        yield infer_request("identity_int32", np.array([7], np.int32))
        done.wait(60)

    stream = OpenCall(service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests(), timeout=60))
    watch = OpenCall(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60))
    wait_for(lambda: stream.answers and watch.answers)
    return stream, watch


def infer_request(model: str, values: np.ndarray[Any, Any]) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="IN", datatype="INT32", shape=list(values.shape))
    request.raw_input_contents.append(values.tobytes())
    return request


def test_idle_streams_are_ended_and_not_waited_for(tmp_path: Path, server_factory: StartServer) -> None:
    """The grace period is longer than any test may take, too."""
    repository = write_models(tmp_path / "models", "identity_int32")
    done = threading.Event()
    with server_factory(repository, "--exit-timeout-secs", "1000") as server:
        with grpc.insecure_channel(server.grpc_url) as channel:
            stream, watch = idle_calls(channel, done)
            server.process.send_signal(signal.SIGTERM)
            stream.wait()
            watch.wait()
            done.set()
        assert server.process.wait(60) == 0
        assert (stream.status, stream.details) == (grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        assert watch.status == grpc.StatusCode.UNAVAILABLE
        serving = health_pb2.HealthCheckResponse.ServingStatus
        assert [answer.status for answer in watch.answers] == [serving.SERVING, serving.NOT_SERVING]


def test_a_gateways_idle_streams_are_ended_and_not_waited_for(
    tmp_path: Path, server_factory: StartServer, gateway_factory: StartGateway
) -> None:
    repository = write_models(tmp_path / "models", "identity_int32")
    done = threading.Event()
    with server_factory(repository) as server, gateway_factory([server], "--exit-timeout-secs", "1000") as gateway:
        with grpc.insecure_channel(gateway.grpc_url) as channel:
            stream, watch = idle_calls(channel, done)
            gateway.process.send_signal(signal.SIGTERM)
            stream.wait()
            watch.wait()
            done.set()
        assert gateway.process.wait(60) == 0
        assert (stream.status, stream.details) == (grpc.StatusCode.UNAVAILABLE, "the gateway is stopping")
