"""Requests that two servers could divide differently: what a worker gets is what one caller sent, and nothing else.

Behind the gateway stands an upstream that records the bytes of each head, and a real worker that answers. Whatever is
ambiguous is refused at the gateway, with the connection; what is not arrives as one request.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from tritonclient.grpc import service_pb2

from gateway_process import GatewayProcess, StartGateway
from hostile_client import connected, message, parse_answers, read_to_end, talk
from hostile_http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PROTOCOL_ERROR,
    GoneAway,
    block,
    frame,
    grpc_message,
    http2,
    rest_block,
)
from hostile_upstreams import Connection, http_upstream
from sample_models import write_models
from server_process import ServerProcess, StartServer

INFER = b"/v2/models/echo/infer"
REAL = b"/v2/models/identity_int32/infer"
BODY = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[7]}]}'
#: How an upstream gets it: with the version that the gateway chose.
PASSED_ON = b"POST /v2/models/echo/versions/1/infer HTTP/1.1"
SMUGGLED = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nX-Smuggled: yes\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Pair:
    """A gateway before the recording upstream, and one before a real worker."""

    recorded: GatewayProcess
    served: GatewayProcess
    worker: ServerProcess
    #: Heads that have arrived behind the first one.
    heads: list[bytes]


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer, gateway_factory: StartGateway
) -> Iterator[Pair]:
    heads: list[bytes] = []

    def note(connection: Connection) -> None:
        heads.append(connection.head)
        connection.answer(200, b'{"model_name": "echo", "id": "%d"}' % len(connection.body))

    repository = write_models(tmp_path_factory.mktemp("smuggling") / "models", "identity_int32")
    with (
        http_upstream(note) as port,
        server_factory(repository) as worker,
        gateway_factory([f"127.0.0.1:{port}"]) as recorded,
        gateway_factory([worker]) as served,
    ):
        recorded.wait_workers(1)
        yield Pair(recorded, served, worker, heads)


@pytest.fixture(autouse=True)
def _honest_callers_are_served(pair: Pair) -> Iterator[None]:
    pair.heads.clear()
    yield
    assert not [head for head in pair.heads if b"smuggled" in head.lower()]
    for port in (pair.served.http_port, pair.worker.http_port):
        (answer,) = parse_answers(talk(port, message("POST", REAL.decode(), BODY)))
        assert json.loads(answer.body)["outputs"][0]["data"] == [7]


#: Heads behind the request line and Host; the bytes that one reading takes for a body, the other for a request.
AMBIGUOUS = {
    "CL.TE": b"Content-Length: 5\r\nTransfer-Encoding: chunked",
    "TE.CL": b"Transfer-Encoding: chunked\r\nContent-Length: 5",
    "TE.TE, two": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "TE.TE, list": b"Transfer-Encoding: identity, chunked",
    "TE.TE, empty element": b"Transfer-Encoding: chunked,",
    "TE.TE, upper case and a suffix": b"Transfer-Encoding: Chunkedx",
    "TE.TE, quoted": b'Transfer-Encoding: "chunked"',
    "TE.TE, parameter": b"Transfer-Encoding: chunked;q=1",
    "TE.TE, vertical tab": b"Transfer-Encoding: \x0bchunked",
    "TE.TE, form feed behind": b"Transfer-Encoding: chunked\x0c",
    "TE.TE, space before the colon": b"Transfer-Encoding : chunked",
    "TE.TE, tab before the colon": b"Transfer-Encoding\t: chunked",
    "TE.TE, folded": b"Transfer-Encoding:\r\n chunked",
    "TE.TE, NUL": b"Transfer-Encoding: chunked\0",
    "TE.TE, bare CR": b"X: a\rTransfer-Encoding: chunked",
    "TE.TE, bare LF": b"X: a\nTransfer-Encoding: chunked",
    "TE.TE, no name": b": x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5",
    "TE.TE, underscore and length": b"Transfer_Encoding: chunked\r\nTransfer-Encoding: cow",
    "CL.CL, equal": b"Content-Length: 5\r\nContent-Length: 5",
    "CL.CL, different": b"Content-Length: 5\r\nContent-Length: 0",
    "CL.CL, list": b"Content-Length: 5, 5",
    "CL, plus": b"Content-Length: +5",
    "CL, minus": b"Content-Length: -5",
    "CL, hexadecimal": b"Content-Length: 0x5",
    "CL, underscore": b"Content-Length: 5_0",
    "CL, point": b"Content-Length: 5.0",
    "CL, exponent": b"Content-Length: 5e0",
    "CL, space inside": b"Content-Length: 5 0",
    "CL, overflow of 64 bits": b"Content-Length: 18446744073709551621",
    "CL, other digits": "Content-Length: \u0665".encode(),
    "CL, folded": b"Content-Length: 5\r\n 0",
    "CL, CR inside": b"Content-Length: 5\r0",
    "CL, space before the colon": b"Content-Length : 5",
    "CL, NUL in the name": b"Content\0-Length: 5",
    "first line folded": b" Content-Length: 5",
    "two hosts": b"Host: y\r\nContent-Length: 5",
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_a_body_with_two_ends_is_refused(pair: Pair, tried: Counter[str], name: str) -> None:
    for gateway, target in ((pair.recorded, INFER), (pair.served, REAL)):
        head = b"POST " + target + b" HTTP/1.1\r\nHost: x\r\n" + AMBIGUOUS[name] + b"\r\n\r\n"
        for body in (b"0\r\n\r\n", b"hello"):
            answers = parse_answers(talk(gateway.http_port, head + body + SMUGGLED))
            assert [answer.status // 100 for answer in answers] in ([4], [5]), answers
            assert answers[0].status in (400, 501), answers
            tried["a body whose end two servers could see in two places"] += 1
    assert not pair.heads


@pytest.mark.parametrize(
    "line",
    [
        b"POST %s HTTP/1.1 \r\n",
        b"POST  %s HTTP/1.1\r\n",
        b"POST\t%s\tHTTP/1.1\r\n",
        b"POST %s HTTP/1.1\r\r\n",
        b"POST %s HTTP/1.1\n",
        b"POST %s\r\n",
        b"POST %s HTTP/0.9\r\n",
        b"POST %s HTTP/1.2\r\n",
        b"POST %s HTTP/2.0\r\n",
        b"POST %s\x0bHTTP/1.1\r\n",
        b"POST %s\0 HTTP/1.1\r\n",
        b"P\0ST %s HTTP/1.1\r\n",
        b"post %s HTTP/1.1\r\n",
        b"POST %s http/1.1\r\n",
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n",
        b"CONNECT %s HTTP/1.1\r\n",
        b"PRI * HTTP/1.1\r\n",
    ],
    ids=range(17),
)
def test_strange_request_lines(pair: Pair, tried: Counter[str], line: bytes) -> None:
    head = (line % INFER if b"%s" in line else line) + b"Host: x\r\nContent-Length: 0\r\n\r\n"
    answers = parse_answers(talk(pair.recorded.http_port, head + message("GET", "/v2/health/live")))
    # One that is merely unknown, or has a space too many, is one request, and the next one is the next.
    assert [answer.status // 100 for answer in answers] in ([4], [5], [4, 2], [2, 2]), answers
    assert [head.partition(b"\r\n")[0] for head in pair.heads] in ([], [PASSED_ON])
    tried["request lines that servers read differently"] += 1


def test_absolute_targets_lead_nowhere_else(pair: Pair, tried: Counter[str]) -> None:
    for target in (
        b"http://192.0.2.1:9" + INFER,
        b"http://user:secret@192.0.2.1" + INFER,
        b"https://x\\@y" + INFER,
        b"HTTP://x" + INFER,
        b"//192.0.2.1" + INFER,
        b"ftp://192.0.2.1" + INFER,
        b"file:///etc/passwd",
        b"http://x?/../../etc",
        b"http:" + INFER,
    ):
        data = b"POST " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        (answer,) = parse_answers(talk(pair.recorded.http_port, data))
        assert answer.status in (200, 400, 404, 405), target
        tried["targets of another server"] += 1
    # What passed went to the one upstream, as a path.
    assert all(head.startswith(PASSED_ON + b"\r\n") for head in pair.heads)
    assert not [head for head in pair.heads if b"secret" in head]


CHUNKED = b"POST " + INFER + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "body",
    [
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5\nhello\n0\n\n",
        b"5\r\nhello\r0\r\n\r\n",
        b"5\rhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"5_\r\nhello\r\n0\r\n\r\n",
        b"10000000000000005\r\nhello\r\n0\r\n\r\n",
        b"-1\r\nhello\r\n0\r\n\r\n",
        b"\r\n5\r\nhello\r\n0\r\n\r\n",
        b"5;a\nb\r\nhello\r\n0\r\n\r\n",
        b"5;a=\0\r\nhello\r\n0\r\n\r\n",
        b"5\0\r\nhello\r\n0\r\n\r\n",
    ],
    ids=range(14),
)
def test_chunks_that_could_end_elsewhere(pair: Pair, tried: Counter[str], body: bytes) -> None:
    answers = parse_answers(talk(pair.recorded.http_port, CHUNKED + body + SMUGGLED))
    tried["chunks that servers read differently"] += 1
    if [answer.status for answer in answers] == [400]:
        assert not pair.heads
        return
    # Read in one way, and passed on with a length of its own: no upstream can read it in another.
    raise AssertionError(answers)


def test_extensions_and_trailers_end_at_the_gateway(pair: Pair, tried: Counter[str]) -> None:
    body = b"5;name=x;b\r\nhello\r\n0\r\nX-Trailer: smuggled\r\nAuthorization: smuggled\r\nContent-Length: 99\r\n\r\n"
    with connected(pair.recorded.http_port) as connection:
        connection.sendall(CHUNKED.replace(b"Host", b"Connection: close\r\nHost") + body)
        (answer,) = parse_answers(read_to_end(connection))
    assert json.loads(answer.body)["id"] == "5"
    (head,) = pair.heads
    assert b"content-length: 5\r\n" in head.lower() + b"\r\n"
    assert b"transfer-encoding" not in head.lower()
    tried["trailers that name headers"] += 1


MALFORMED_BLOCKS = [
    rest_block("POST", "/v2/models/echo/infer HTTP/1.1\r\nX-Smuggled: 1\r\n\r\n"),
    rest_block("POST", "/v2/models/echo/infer\rX-Smuggled"),
    rest_block("POST", "/v2/models/echo/infer\nX-Smuggled"),
    rest_block("POST", "/v2/models/echo/infer HTTP/1.1"),
    rest_block("POST", "/v2/models/echo/infer\0"),
    rest_block("POST", "v2/models/echo/infer"),
    rest_block("POST /v2/models/smuggled", "/v2/models/echo/infer"),
    rest_block("POST\r\nX-Smuggled: 1", "/v2/models/echo/infer"),
    rest_block("", "/v2/models/echo/infer"),
    rest_block("POST", "/v2/models/echo/infer", ("transfer-encoding", "chunked")),
    rest_block("POST", "/v2/models/echo/infer", ("connection", "close, x-smuggled")),
    rest_block("POST", "/v2/models/echo/infer", ("keep-alive", "1")),
    rest_block("POST", "/v2/models/echo/infer", ("upgrade", "h2c")),
    rest_block("POST", "/v2/models/echo/infer", ("proxy-connection", "x")),
    rest_block("POST", "/v2/models/echo/infer", ("te", "trailers, chunked")),
    rest_block("POST", "/v2/models/echo/infer", ("X-Smuggled", "1")),
    rest_block("POST", "/v2/models/echo/infer", ("x-smuggled: 1\r\nx", "1")),
    rest_block("POST", "/v2/models/echo/infer", ("x", "1\r\nX-Smuggled: 1")),
    rest_block("POST", "/v2/models/echo/infer", ("x", "1\nX-Smuggled: 1")),
    rest_block("POST", "/v2/models/echo/infer", ("x", "1\rX-Smuggled: 1")),
    rest_block("POST", "/v2/models/echo/infer", ("x", "1\0")),
    rest_block("POST", "/v2/models/echo/infer", ("x y", "1")),
    rest_block("POST", "/v2/models/echo/infer", ("x:y", "1")),
    rest_block("POST", "/v2/models/echo/infer", ("", "smuggled")),
    rest_block("POST", "/v2/models/echo/infer", ("x\x7f", "smuggled")),
    rest_block("POST", "/v2/models/echo/infer", ("x", "1"), (":path", "/smuggled")),
    rest_block("POST", "/v2/models/echo/infer", (":path", "/smuggled")),
    rest_block("POST", "/v2/models/echo/infer", (":authority", "smuggled")),
    rest_block("POST", "/v2/models/echo/infer", (":protocol", "websocket")),
    rest_block("POST", "/v2/models/echo/infer", ("content-length", "3"), ("content-length", "5")),
    rest_block("POST", "/v2/models/echo/infer", ("content-length", "+5")),
    rest_block("POST", "/v2/models/echo/infer", ("content-length", "5, 5")),
    rest_block("POST", "/v2/models/echo/infer", ("content-length", "4")),
    rest_block("POST", "/v2/models/echo/infer", ("content-length", "6")),
    block((":method", "POST"), (":scheme", "http"), (":path", "/v2/models/echo/infer"), (":authority", "a\r\nX: 1")),
    block((":method", "POST"), (":scheme", "http"), (":path", "/v2/models/echo/infer"), (":authority", "a b")),
]


@pytest.mark.parametrize("fields", MALFORMED_BLOCKS, ids=range(len(MALFORMED_BLOCKS)))
def test_http2_that_would_become_other_http1(pair: Pair, tried: Counter[str], fields: bytes) -> None:
    with http2(pair.recorded.http_port) as end:
        end.send(frame(HEADERS, END_HEADERS, 1, fields), frame(DATA, END_STREAM, 1, b"hello"))
        end.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, rest_block("GET", "/v2/health/live")))
        with suppress(GoneAway):
            answers = end.responses(1, 3)
            assert answers[1].reset == PROTOCOL_ERROR or answers[1].status in (400, 404, 405)
            assert answers[3].status == 200
    assert not pair.heads
    tried["HTTP/2 fields that would be other HTTP/1.1"] += 1


def test_grpc_metadata_cannot_be_split(pair: Pair, tried: Counter[str]) -> None:
    payload = service_pb2.ModelInferRequest(model_name="identity_int32").SerializeToString()
    own = (("content-type", "application/grpc"), ("te", "trailers"))
    for port in (pair.served.grpc_port, pair.worker.grpc_port):
        for field in (
            ("x", "1\r\nx-smuggled: 1"),
            ("x-bin", "AAA\r\nx-smuggled: 1"),
            ("x\r\nx-smuggled", "1"),
            ("X-Smuggled", "1"),
            ("grpc-timeout", "1S\r\nx-smuggled: 1"),
        ):
            with http2(port) as end:
                head = rest_block("POST", "/inference.GRPCInferenceService/ModelInfer", *own, field)
                end.send(frame(HEADERS, END_HEADERS, 1, head), frame(DATA, END_STREAM, 1, grpc_message(payload)))
                assert end.response(1).reset == PROTOCOL_ERROR
            tried["gRPC metadata that would be other fields"] += 1


INTERNAL = {
    "x-isochrone-stages": "preprocess=9",
    "x-isochrone-epoch": "current",
    "x-isochrone-model": "other=7",
    "x-isochrone-explain": "1",
    "x-request-timeout-ms": "60000",
    "te": "trailers",
    "keep-alive": "timeout=9",
    "proxy-connection": "keep-alive",
    "trailer": "x-smuggled",
    "upgrade": "websocket",
    "origin": "null",
}


def test_internal_headers_of_a_caller_end_at_the_gateway(pair: Pair, tried: Counter[str]) -> None:
    """``x-isochrone-control`` and ``-term`` would do nothing: a worker asks for its own token, and only in calls that
    change it. They are looked for on the way there below."""
    for name, value in INTERNAL.items():
        for spelled in (name, name.upper(), name.title()):
            pair.heads.clear()
            data = message("POST", INFER.decode(), BODY, {spelled: value, "X-Own": "kept"})
            (answer,) = parse_answers(talk(pair.recorded.http_port, data))
            if name == "origin":
                assert answer.status == 403
            tried["internal headers set by a caller"] += 1
            for head in pair.heads:
                fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
                assert fields.pop(b"x-own") == b"kept"
                # A timeout goes on as what is left of it, and a question for the load is the gateway's own.
                sent = fields.get(name.encode())
                assert sent is None or sent != value.encode(), head
