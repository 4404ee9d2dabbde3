"""One caller against all others: a gateway's connections to a worker carry the requests of many callers.

What makes the worker close such a connection, or refuse requests on it in a way that looks like a fault, would open the
circuit breaker and end the service for everybody. Each attack here keeps to the limits of the gateway itself.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest
from tritonclient.grpc import service_pb2

from gateway_process import GatewayProcess, StartGateway
from hostile_client import connected, message, parse_answers, read_to_end, talk
from hostile_http2 import CANCEL, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, frame, http2, rest_block
from sample_models import write_models
from server_process import StartServer
from watching import total, wait_for

INFER = "/v2/models/identity_int32/infer"
BODY = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[7]}]}'
#: Connections of the attacker with a request each at a time: enough for requests to share connections to the worker.
MANY = 10


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer, gateway_factory: StartGateway
) -> Iterator[GatewayProcess]:
    repository = write_models(tmp_path_factory.mktemp("shared") / "models", "identity_int32")
    with server_factory(repository) as worker, gateway_factory([worker]) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _an_honest_caller_is_served(gateway: GatewayProcess) -> Iterator[None]:
    yield
    for _ in range(3):
        (answer,) = parse_answers(talk(gateway.http_port, message("POST", INFER, BODY)))
        assert answer.status == 200, answer
        assert json.loads(answer.body)["outputs"][0]["data"] == [7]
    assert "circuit breaker" not in gateway.log_text()


def _pipelined(port: int, heads: list[list[bytes]]) -> list[int]:
    """The statuses of the answers to these heads' requests: a list per connection, all of them at the same time."""
    statuses = []
    with ExitStack() as opened:
        connections = [opened.enter_context(connected(port)) for _ in heads]
        for round_ in range(len(heads[0])):
            for connection, own in zip(connections, heads, strict=True):
                connection.sendall(own[round_] + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        for connection in connections:
            connection.sendall(message("GET", "/v2/health/live"))
            statuses += [answer.status for answer in parse_answers(read_to_end(connection))[:-1]]
    return statuses


def _head(fields: bytes, host: bytes = b"x") -> bytes:
    return b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: " + host + b"\r\n" + fields


@pytest.mark.parametrize("name", ["60 KB in a field", "7 KB in many fields", "up to the limit", "many small fields"])
def test_large_heads(gateway: GatewayProcess, tried: Counter[str], name: str) -> None:
    """A worker counts bytes of heads beyond 8 KiB, and closes a connection that brings too many: 60 of these did it."""

    def fields(number: int) -> bytes:
        if name == "60 KB in a field":
            return b"X-A: %s\r\n" % (b"%d-" % number + b"~" * 60_000)
        if name == "7 KB in many fields":
            return b"".join(b"x-%d: %d-%s\r\n" % (each, number, b"y" * 48) for each in range(110))
        if name == "up to the limit":
            return b"X-A: %s\r\n" % (b"%d-" % number).ljust(65_536 - 105 - number, b"~")
        return b"".join(b"x-%d: %d\r\n" % (each, number) for each in range(120))

    statuses = _pipelined(
        gateway.http_port, [[_head(fields(10 * row + each)) for each in range(6)] for row in range(MANY)]
    )
    assert len(statuses) == 6 * MANY
    assert set(statuses) <= {200, 431}, Counter(statuses)
    tried["large heads to connections that callers share"] += len(statuses)


@pytest.mark.parametrize("host", [b"a b", b"a\tb", b"a/b", b"[::1", b"user@x", b"", b"x" * 5000, b"a:b:c", b"\xff"])
def test_strange_hosts(gateway: GatewayProcess, tried: Counter[str], host: bytes) -> None:
    """Host becomes an authority on shared connections. A worker resets a stream whose authority has a space, which
    counted as a failure of the worker."""
    if b" " in host or b"\t" in host:
        for _ in range(5):
            (answer,) = parse_answers(talk(gateway.http_port, _head(b"Content-Length: 0\r\n\r\n", host)))
            assert answer.status == 400
    else:
        statuses = _pipelined(gateway.http_port, [[_head(b"", host)] * 4 for _ in range(MANY)])
        assert set(statuses) <= {200, 400, 431}, Counter(statuses)
    with http2(gateway.http_port) as end:
        for stream in range(1, 41, 2):
            block = rest_block("POST", INFER, ("host", host.decode("latin-1")))
            end.send(frame(HEADERS, END_HEADERS, stream, block), frame(0, END_STREAM, stream, BODY))
        answers = end.responses(*range(1, 41, 2))
        assert all(answer.reset is not None or answer.status in (200, 400) for answer in answers.values())
    tried["hosts that no authority may have"] += 25


def test_large_metadata(gateway: GatewayProcess, tried: Counter[str]) -> None:
    request = service_pb2.ModelInferRequest(model_name="identity_int32").SerializeToString()
    with grpc.insecure_channel(gateway.grpc_url, [("grpc.max_metadata_size", 1 << 20)]) as channel:
        for method in ("ModelInfer", "ModelStreamInfer", "RepositoryIndex", "ModelStatistics", "TraceSetting"):
            for number in range(30):
                metadata = (("x-a" if number % 2 else "authorization", f"{number}-" + "~" * 30_000),)
                with pytest.raises(grpc.RpcError) as caught:
                    list(
                        channel.unary_stream(f"/inference.GRPCInferenceService/{method}")(
                            request, metadata=metadata, timeout=60
                        )
                    )
                # The gateway's own limit, or that of its connections with the caller.
                assert caught.value.code() in (
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    grpc.StatusCode.UNAVAILABLE,
                ), caught.value
                tried["large metadata to connections that callers share"] += 1


def test_calls_that_are_cancelled_at_once(gateway: GatewayProcess, tried: Counter[str]) -> None:
    """Each attacker stays below the limit of resets; together they would exceed the worker's for one connection."""
    with (
        http2(gateway.http_port) as one,
        http2(gateway.http_port) as two,
        http2(gateway.http_port) as three,
        http2(gateway.http_port) as four,
    ):
        for start in range(1, 1801, 100):
            for end in (one, two, three, four):
                pieces = []
                for stream in range(start, start + 100, 2):
                    pieces.append(frame(HEADERS, END_HEADERS, stream, rest_block("POST", INFER)))
                    pieces.append(frame(0, END_STREAM, stream, BODY))
                    pieces.append(frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))
                end.send(*pieces)
        wait_for(lambda: total(gateway, "isochrone_gateway_in_flight") == 0)
    tried["calls cancelled at once by several callers"] += 3600
