"""Workers that answer garbage, half an answer, nothing, or resets: a clear error, and nothing else disturbed.

Each misbehaviour is met twice: by a gateway that has nobody else, which must say what is wrong and go on, and beside a
good worker, where no caller may notice anything.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway_process import GatewayProcess, StartGateway
from hostile_client import ECHO_BYTES
from hostile_models import write_repository
from hostile_upstreams import Behaviour, Call, Connection, Stop, grpc_upstream, http_upstream
from server_process import ServerProcess, StartServer
from watching import metrics

OK = b'{"model_name":"echo","outputs":[{"name":"y","datatype":"FP32","shape":[2],"data":[1.5,-2.0]}]}'


@pytest.fixture(scope="module")
def good_worker(tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer) -> Iterator[ServerProcess]:
    with server_factory(write_repository(tmp_path_factory.mktemp("good") / "models")) as server:
        yield server


def post(gateway: GatewayProcess, verb: str = "infer", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", f"/v2/models/echo/{verb}", ECHO_BYTES, named)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def garbage(connection: Connection) -> None:
    connection.sock.sendall(b"\0\xff\xfe not HTTP at all \r\n\r\n")


def half_a_head(connection: Connection) -> None:
    connection.sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-le")
    raise Stop


def half_a_body(connection: Connection) -> None:
    connection.sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
    raise Stop


def closes(connection: Connection) -> None:
    raise Stop


def resets(connection: Connection) -> None:
    connection.reset()
    raise Stop


def huge_head(connection: Connection) -> None:
    connection.sock.sendall(b"HTTP/1.1 200 OK\r\n" + b"x-filler: %s\r\n" % (b"y" * 1000) * 1000)
    raise Stop


def two_lengths(connection: Connection) -> None:
    connection.sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 7\r\n\r\nhello")


def negative_length(connection: Connection) -> None:
    connection.sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello")


def length_and_chunks(connection: Connection) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"
    connection.sock.sendall(head + b"5\r\nhello\r\n0\r\n\r\n")


def bad_chunks(connection: Connection) -> None:
    connection.sock.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n")


def huge_length(connection: Connection) -> None:
    connection.sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\nhello")


def another_servers_page(connection: Connection) -> None:
    connection.answer(200, b"<html>It works!</html>", b"content-type: text/html")


def another_servers_error(connection: Connection) -> None:
    connection.answer(501, b"<html>Unsupported method ('POST')</html>", b"content-type: text/html")


def another_servers_json(connection: Connection) -> None:
    connection.answer(200, b'{"status": "ok"}', b"content-type: application/json")


def another_servers_chunks(connection: Connection) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    connection.sock.sendall(head + b'f\r\n{"status":"ok"\r\n1\r\n}\r\n0\r\n\r\n')


def another_servers_large_page(connection: Connection) -> None:
    connection.answer(200, b"<html>" + b"x" * 600_000, b"content-type: text/html")


BROKEN: dict[str, Behaviour] = {
    behaviour.__name__: behaviour
    for behaviour in (
        *(garbage, half_a_head, half_a_body, closes, resets, huge_head),
        *(two_lengths, negative_length, length_and_chunks, bad_chunks, huge_length),
        *(another_servers_page, another_servers_error, another_servers_json, another_servers_chunks),
        another_servers_large_page,
    )
}


@dataclass
class Puppet:
    """A gateway with one worker, whose behaviour the test sets."""

    gateway: GatewayProcess
    behaviour: Behaviour = closes

    def post(self, **headers: str) -> tuple[int, bytes]:
        return post(self.gateway, **headers)


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rules by which a worker that fails goes on getting requests."""
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text("defaults: {breaker: false}\noutliers: false\n")
    return rules


@pytest.fixture(scope="module")
def puppet(lenient: Path, gateway_factory: StartGateway) -> Iterator[Puppet]:
    made: list[Puppet] = []
    with (
        http_upstream(lambda connection: made[0].behaviour(connection)) as port,
        gateway_factory([f"127.0.0.1:{port}"], "--rules", str(lenient)) as gateway,
    ):
        gateway.wait_workers(1)
        made.append(Puppet(gateway))
        yield made[0]


class TestAlone:
    @pytest.mark.parametrize("name", BROKEN)
    def test_is_told_and_survived(self, puppet: Puppet, name: str) -> None:
        puppet.behaviour = BROKEN[name]
        for _ in range(3):
            status, body = puppet.post()
            assert status in (502, 503)
            assert "127.0.0.1" in json.loads(body)["error"]
        puppet.behaviour = lambda connection: connection.answer(200, OK)
        assert puppet.post() == (200, OK)

    def test_a_short_answer_is_waited_for_until_the_deadline(self, puppet: Puppet) -> None:
        puppet.behaviour = lambda connection: connection.sock.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello"
        )
        status, body = puppet.post(x_request_timeout_ms="100")
        assert status == 504
        assert "Request timeout expired" in json.loads(body)["error"]

    def test_a_long_answer_is_cut_at_its_length(self, puppet: Puppet) -> None:
        """What follows it belongs to nobody: the next request gets an answer of its own."""
        puppet.behaviour = lambda connection: connection.sock.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%bHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
            % (len(OK), OK)
        )
        assert puppet.post() == (200, OK)
        puppet.behaviour = lambda connection: connection.answer(200, OK)
        assert puppet.post() == (200, OK)

    def test_chunks_are_fine(self, puppet: Puppet) -> None:

        def chunked(connection: Connection) -> None:
            connection.sock.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for piece in (OK[:3], OK[3:]):
                connection.sock.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            connection.sock.sendall(b"0\r\n\r\n")

        puppet.behaviour = chunked
        for _ in range(3):
            assert puppet.post() == (200, OK)

    def test_an_answer_that_ends_with_its_connection(self, puppet: Puppet) -> None:

        def until_closed(connection: Connection) -> None:
            connection.sock.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + OK)
            raise Stop

        puppet.behaviour = until_closed
        assert puppet.post() == (200, OK)

    def test_a_stream_that_breaks_off_is_not_taken_for_whole(self, puppet: Puppet) -> None:

        def breaks_off(connection: Connection) -> None:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            connection.sock.sendall(head + b"8\r\ndata: {}\r\n")
            raise Stop

        puppet.behaviour = breaks_off
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            post(puppet.gateway, "generate_stream")

    @pytest.mark.parametrize(
        "value", [b"TEXT named_metrics.in_flight=nan", b"in_flight=inf", b"JSON {", b"\xff\xfe", b"x"]
    )
    def test_a_load_report_without_sense(self, puppet: Puppet, value: bytes) -> None:
        puppet.behaviour = lambda connection: connection.answer(200, OK, b"endpoint-load-metrics: " + value)
        for _ in range(3):
            assert puppet.post() == (200, OK)

    def test_headers_of_a_connection_are_not_passed_back(self, puppet: Puppet) -> None:
        puppet.behaviour = lambda connection: connection.answer(
            200, OK, b"connection: keep-alive", b"keep-alive: timeout=5", b"upgrade: h2c", b"x-own: kept"
        )
        connection = http.client.HTTPConnection("127.0.0.1", puppet.gateway.http_port, timeout=60)
        connection.request("POST", "/v2/models/echo/infer", ECHO_BYTES)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        assert answer.getheader("x-own") == "kept"
        assert answer.getheader("keep-alive") is None
        assert answer.getheader("upgrade") is None


def test_beside_a_good_worker_nobody_notices(
    good_worker: ServerProcess, gateway_factory: StartGateway, tmp_path: Path
) -> None:
    """Two of three workers misbehave in every way there is; whoever asks gets the third one's answer."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("defaults: {breaker: false, retries: {ratio: 1, floor_per_second: 100}}\noutliers: false\n")
    now: list[Behaviour] = [closes]
    with ExitStack() as stack:
        ports = [stack.enter_context(http_upstream(lambda connection: now[0](connection))) for _ in range(2)]
        upstreams = [good_worker.http_url, *(f"127.0.0.1:{port}" for port in ports)]
        arguments = ("--policy", "round_robin", "--rules", str(rules))
        gateway = stack.enter_context(gateway_factory(upstreams, *arguments))
        gateway.wait_workers(3)
        for name, behaviour in BROKEN.items():
            now[0] = behaviour
            for _ in range(6):
                status, body = post(gateway)
                assert status == 200, (name, body)
                assert json.loads(body)["outputs"][0]["data"] == [1.5, -2.0]
        samples = {each.name: each.value for family in metrics(gateway) for each in family.samples}
        assert samples["isochrone_gateway_failures_total"] > len(BROKEN)


def echo_request() -> Any:
    request = service_pb2.ModelInferRequest(model_name="echo")
    request.inputs.add(name="x", datatype="FP32", shape=[2])
    request.raw_input_contents.append(b"\0" * 8)
    return request


GRPC_OK = (":status", "200"), ("content-type", "application/grpc")


def html(call: Call) -> None:
    call.headers_back((":status", "200"), ("content-type", "text/html"))
    call.data(b"<html>hello</html>", end=True)


def not_found(call: Call) -> None:
    call.headers_back((":status", "404"), end=True)


def no_trailers(call: Call) -> None:
    call.headers_back(*GRPC_OK)
    call.data(b"\0\0\0\0\0", end=True)


def stream_reset(call: Call) -> None:
    call.http2.reset_stream(call.stream_id, 2)
    call.flush()


def half_a_message(call: Call) -> None:
    call.headers_back(*GRPC_OK)
    call.data(b"\0\0\0\0\x64half")
    raise Stop


def goes_away(call: Call) -> None:
    call.http2.close_connection(last_stream_id=0)
    call.flush()
    raise Stop


def raw_garbage(call: Call) -> None:
    call.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    raise Stop


def unasked_stream(call: Call) -> None:
    call.sock.sendall(bytes.fromhex("00000101050000006388"))
    raise Stop


GRPC_BROKEN: dict[str, Callable[[Call], None]] = {
    behaviour.__name__: behaviour
    for behaviour in (
        *(html, not_found, no_trailers, stream_reset),
        *(half_a_message, goes_away, raw_garbage, unasked_stream),
    )
}


def trailers_only(call: Call) -> None:
    call.headers_back(*GRPC_OK, ("grpc-status", "9"), ("grpc-message", "not%20now"), ("x-why", "because"), end=True)


@dataclass
class GrpcPuppet:
    """A gateway with one gRPC worker, whose behaviour the test sets."""

    stub: Any
    behaviour: Callable[[Call], None] = html

    def call(self, method: str) -> Any:
        if method == "unary":
            return self.stub.ModelInfer(echo_request(), timeout=60)
        return list(self.stub.ModelStreamInfer(iter([echo_request()]), timeout=60))


@pytest.fixture(scope="module")
def grpc_puppet(lenient: Path, gateway_factory: StartGateway) -> Iterator[GrpcPuppet]:
    made: list[GrpcPuppet] = []
    with (
        http_upstream(lambda connection: connection.answer(200, OK)) as port,
        grpc_upstream(lambda call: made[0].behaviour(call)) as grpc_port,
        gateway_factory([f"127.0.0.1:{port},grpc={grpc_port}"], "--rules", str(lenient)) as gateway,
        grpc.insecure_channel(gateway.grpc_url) as channel,
    ):
        gateway.wait_workers(1)
        made.append(GrpcPuppet(service_pb2_grpc.GRPCInferenceServiceStub(channel)))
        yield made[0]


class TestGrpc:
    @pytest.mark.parametrize("name", GRPC_BROKEN)
    def test_is_told(self, grpc_puppet: GrpcPuppet, name: str) -> None:
        grpc_puppet.behaviour = GRPC_BROKEN[name]
        for method in ("unary", "stream", "unary"):
            with pytest.raises(grpc.RpcError) as caught:
                grpc_puppet.call(method)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            assert "worker" in caught.value.details()

    def test_a_status_without_a_message_passes_as_it_is(self, grpc_puppet: GrpcPuppet) -> None:
        grpc_puppet.behaviour = trailers_only
        for method in ("unary", "stream"):
            with pytest.raises(grpc.RpcError) as caught:
                grpc_puppet.call(method)
            assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert caught.value.details() == "not now"
            assert ("x-why", "because") in caught.value.trailing_metadata()

    def test_beside_a_good_worker_nobody_notices(
        self, good_worker: ServerProcess, gateway_factory: StartGateway, tmp_path: Path
    ) -> None:
        rules = tmp_path / "rules.yaml"
        rules.write_text("defaults: {retries: {floor_per_second: 100}}\n")
        with ExitStack() as stack:
            port = stack.enter_context(http_upstream(lambda connection: connection.answer(200, OK)))
            bad = stack.enter_context(grpc_upstream(stream_reset))
            upstreams = [good_worker.http_url, f"127.0.0.1:{port},grpc={bad}"]
            arguments = ("--policy", "round_robin", "--rules", str(rules))
            gateway = stack.enter_context(gateway_factory(upstreams, *arguments))
            gateway.wait_workers(2)
            channel = stack.enter_context(grpc.insecure_channel(gateway.grpc_url))
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for _ in range(40):
                assert stub.ModelInfer(echo_request(), timeout=60).raw_output_contents[0] == b"\0" * 8
