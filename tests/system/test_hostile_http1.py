"""Malformed HTTP/1.1 against a real server: each refused with its code and reason, and the server unharmed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from hostile_client import ECHO_BYTES, Victim, ask, connected, message, parse_answers, read_to_end, refusal, talk
from hostile_models import write_repository
from server_process import StartServer

HOST_LINE = b"Host: test\r\n"
GET = b"GET /v2 HTTP/1.1\r\n"
CHUNKED = b"POST /v2/repository/index HTTP/1.1\r\n" + HOST_LINE + b"Transfer-Encoding: chunked\r\n\r\n"
LIMIT = 4 << 20


@pytest.fixture(scope="module")
def victim(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    repository = write_repository(tmp_path_factory.mktemp("hostile"))
    with server_factory(repository, "--max-body-bytes", str(LIMIT)) as server:
        yield Victim(server)


@pytest.fixture(autouse=True)
def _unharmed(victim: Victim) -> Iterator[None]:
    yield
    victim.check()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\x00\x01\x02 garbage\r\n\r\n", "a request line must begin with a method"),
        (b"GET /v2\r\n\r\n", "names no HTTP version"),
        (b"GET /v2 HTTP/3.7\r\n" + HOST_LINE + b"\r\n", "Invalid HTTP version"),
        (b"G=T /v2 HTTP/1.1\r\n" + HOST_LINE + b"\r\n", "Invalid method"),
        (b"get /v2 HTTP/1.1\r\n" + HOST_LINE + b"\r\n", "Invalid method"),
        (b"GET /v2 x HTTP/1.1\r\n" + HOST_LINE + b"\r\n", "Expected HTTP/"),
        (b"GET /v2\0 HTTP/1.1\r\n" + HOST_LINE + b"\r\n", "Invalid char in url"),
        (GET + HOST_LINE + b"a: b\0c\r\n\r\n", "Invalid header value"),
        (GET + HOST_LINE + b"a\0: c\r\n\r\n", "Invalid header token"),
        (GET + HOST_LINE + b"a : c\r\n\r\n", "Invalid header token"),
        (GET + HOST_LINE + b"abc\r\n\r\n", "Invalid header token"),
        (GET + HOST_LINE + b": abc\r\n\r\n", "Invalid header token"),
        (GET + HOST_LINE + b"a: b\r\n folded\r\n\r\n", "Unexpected whitespace"),
        (b"GET /v2 HTTP/1.1\nHost: test\n\n", "must end with CRLF"),
        (b"GET /v2 HTTP/1.1\r\nHost: test\nx: y\r\n\r\n", "Missing expected CR"),
        (b"GET /v2 HTTP/1.1\r\nHost: test\rx: y\r\n\r\n", "Missing expected LF"),
        (GET + b"\r\n", "needs one Host header, given 0"),
        (GET + HOST_LINE + HOST_LINE + b"\r\n", "needs one Host header, given 2"),
    ],
)
def test_a_malformed_head_is_400(victim: Victim, sent: bytes, reason: str) -> None:
    answer = refusal(victim.http, sent)
    assert answer.status == 400
    assert reason in answer.error
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        (b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", 400, "can't be present with Content-Length"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", 400, "can't be present with Transfer-Encoding"),
        (b"Content-Length: 4\r\nContent-Length: 4\r\n", 400, "Duplicate Content-Length"),
        (b"Content-Length: 4\r\nContent-Length: 5\r\n", 400, "Duplicate Content-Length"),
        (b"Content-Length: 4, 4\r\n", 400, "Invalid character in Content-Length"),
        (b"Content-Length: -4\r\n", 400, "Invalid character in Content-Length"),
        (b"Content-Length: +4\r\n", 400, "Invalid character in Content-Length"),
        (b"Content-Length: 0x4\r\n", 400, "Invalid character in Content-Length"),
        (b"Content-Length: \r\n", 400, "Empty Content-Length"),
        (b"Content-Length: 99999999999999999999999\r\n", 400, "Content-Length overflow"),
        (b"Content-Length: 9223372036854775807\r\n", 413, "max_body_bytes"),
        (b"Transfer-Encoding: gzip, chunked\r\n", 501, "send chunked"),
        (b"Transfer-Encoding: xchunked\r\n", 400, "Transfer-Encoding"),
        (b"Transfer-Encoding: identity\r\n", 400, "Transfer-Encoding"),
        (b"Transfer-Encoding: \x0bchunked\r\n", 400, "Invalid header value"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400, "Transfer-Encoding"),
        (b"Expect: cake\r\n", 417, "100-continue"),
    ],
)
def test_ambiguous_framing_is_refused_and_nothing_behind_it_is_read(
    victim: Victim, fields: bytes, status: int, reason: str
) -> None:
    smuggled = b"0\r\n\r\nGET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n"
    answer = refusal(victim.http, b"POST /v2/repository/index HTTP/1.1\r\n" + HOST_LINE + fields + b"\r\n" + smuggled)
    assert answer.status == status
    assert reason in answer.error


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"zz\r\n", "not a hexadecimal number"),
        (b"-1\r\n", "not a hexadecimal number"),
        (b"0x1\r\na\r\n0\r\n\r\n", "not a hexadecimal number"),
        (b"1_0\r\n", "not a hexadecimal number"),
        (b"ffffffffffffffff\r\n", "not a hexadecimal number"),
        (b"2\r\nabc\r\n0\r\n\r\n", "longer than its size line"),
        (b"2\n{}\n0\n\n", "must end with CRLF"),
        (b"2;" + b"a" * 500 + b"\r\n{}\r\n0\r\n\r\n", "size line is too long"),
        (b"2\r\n{}\r\n0\r\n" + b"a: bbbbbbbbbbbbbbbbbbb\r\n" * 2000, "trailers are larger"),
    ],
)
def test_a_malformed_chunked_body_is_400(victim: Victim, body: bytes, reason: str) -> None:
    answer = refusal(victim.http, CHUNKED + body)
    assert answer.status == 400
    assert reason in answer.error


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (GET + HOST_LINE + b"a: " + b"x" * 70_000 + b"\r\n\r\n", "max_head_bytes (65536)"),
        (b"GET /v2/" + b"a" * 70_000 + b" HTTP/1.1\r\n" + HOST_LINE + b"\r\n", "max_head_bytes (65536)"),
        (GET + HOST_LINE + b"a: x\r\n" * 500 + b"\r\n", "501 header fields; max_headers is 128"),
        (GET + HOST_LINE + b"a: x\r\n" * 20_000, "max_head_bytes (65536)"),
    ],
    ids=["one large field", "long target", "many fields", "a head without end"],
)
def test_an_absurd_head_is_431(victim: Victim, sent: bytes, reason: str) -> None:
    answer = refusal(victim.http, sent)
    assert answer.status == 431
    assert reason in answer.error


def test_an_oversized_body_gets_a_413_it_can_read_although_it_keeps_sending(victim: Victim) -> None:
    answer = ask(victim.http, "POST", "/v2/models/echo/infer", b"x" * (3 * LIMIT))
    assert answer.status == 413
    assert answer.error == f"the request's body is larger than max_body_bytes ({LIMIT})"


def test_an_oversized_chunked_body_gets_a_413(victim: Victim) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    answer = refusal(victim.http, CHUNKED + chunk * (LIMIT // 0x10000 + 40))
    assert answer.status == 413
    assert "max_body_bytes" in answer.error


def test_tiny_chunks_cost_their_size_and_no_more(victim: Victim) -> None:
    """2 MiB as two-byte chunks: a list of pieces would take over 50 MiB."""
    body = b'{"ready": false}'.ljust(2 << 20)
    chunks = b"".join(b"2\r\n%s\r\n" % body[start : start + 2] for start in range(0, len(body), 2))
    with connected(victim.http) as connection:
        connection.sendall(CHUNKED.replace(b"Host", b"Connection: close\r\nHost") + chunks + b"0\r\n\r\n")
        assert parse_answers(read_to_end(connection))[0].status == 200


def test_announcing_a_body_takes_no_memory_by_itself(victim: Victim) -> None:
    """A hundred heads that announce 4 MiB each, of which nothing comes."""
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n{" % LIMIT
    held = [socket.create_connection(("127.0.0.1", victim.http)) for _ in range(100)]
    try:
        for connection in held:
            connection.sendall(head)
        victim.check()
    finally:
        for connection in held:
            connection.close()


def test_a_body_that_ends_early_is_dropped(victim: Victim) -> None:
    whole = message("POST", "/v2/models/echo/infer", ECHO_BYTES)
    assert talk(victim.http, whole[:-10], half_close=True) == b""


def test_a_request_cut_at_any_byte_is_never_answered(victim: Victim) -> None:
    whole = message("POST", "/v2/models/echo/infer", ECHO_BYTES)
    for cut in range(0, len(whole), 7):
        assert talk(victim.http, whole[:cut], half_close=True) == b"", cut


def test_requests_before_a_malformed_one_are_answered_first(victim: Victim) -> None:
    good = message("POST", "/v2/models/echo/infer", ECHO_BYTES).replace(b"Connection: close\r\n", b"")
    answers = parse_answers(talk(victim.http, good * 3 + b"nonsense\r\n\r\n" + good))
    assert [answer.status for answer in answers] == [200, 200, 200, 400]


def test_a_flood_of_pipelined_requests_is_answered_in_order(victim: Victim) -> None:
    count = 2000
    bodies = [json.dumps({"id": f"r{n}", **json.loads(ECHO_BYTES)}).encode() for n in range(count)]
    requests = [message("POST", "/v2/models/echo/infer", body) for body in bodies]
    keep = b"".join(request.replace(b"Connection: close\r\n", b"") for request in requests[:-1])
    answers = parse_answers(talk(victim.http, keep + requests[-1]))
    assert [json.loads(answer.body)["id"] for answer in answers] == [f"r{n}" for n in range(count)]


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/", 404, "no such path"),
        ("GET", "/v3", 404, "no such path"),
        ("GET", "/v2/../../etc/passwd", 404, "no such path"),
        ("GET", "/v2/models/echo/versions", 404, "no such path"),
        ("GET", "/v2/models//ready", 404, "no such path"),
        ("GET", "/v2/models/echo/versions/1/", 200, ""),
        ("GET", "/v2/models/%2e%2e%2f%2e%2e%2fetc", 404, "Request for unknown model: '../../etc' is not found"),
        ("GET", "/v2/models/%00", 404, "is not found"),
        ("GET", "/v2/models/%ff%fe", 400, "not valid UTF-8"),
        ("GET", "/v2/models/echo%20/ready", 400, "not ready"),
        ("GET", "/v2/models/echo/versions/-1", 400, "expected a positive integer, given '-1'"),
        ("GET", "/v2/models/echo/versions/9999999999999999999999", 400, "expected a positive integer"),
        ("GET", "/v2/models/echo/versions/2", 404, "'echo' version 2 is not found"),
        ("GET", "/v2/models/echo/versions/one", 400, "expected a positive integer, given 'one'"),
        ("GET", "/v2/models/" + "m" * 60_000, 404, "(60042 characters)"),
        ("GET", "/v2/models/echo/infer", 405, "expected POST, given GET"),
        ("DELETE", "/v2/models/echo", 405, "expected GET, given DELETE"),
        ("POST", "/v2/health/live", 405, "expected GET, given POST"),
        ("PUT", "/v2/repository/index", 405, "expected POST, given PUT"),
        ("TRACE", "/v2", 405, "expected GET, given TRACE"),
        ("OPTIONS", "*", 404, "no such path"),
        ("GET", "http://elsewhere/v2/health/live", 200, ""),
        ("GET", "http://elsewhere", 404, "no such path"),
    ],
)
def test_bad_paths_names_and_methods(victim: Victim, method: str, path: str, status: int, reason: str) -> None:
    answer = ask(victim.http, method, path)
    assert answer.status == status
    if reason:
        assert reason in answer.error


def test_grpc_over_http1_is_refused_in_words(victim: Victim) -> None:
    for method in ("ModelInfer", "ModelStreamInfer"):
        path = f"/inference.GRPCInferenceService/{method}"
        answer = ask(victim.http, "POST", path, b"\0" * 5, {"Content-Type": "application/grpc"})
        assert answer.status == 400
        assert "gRPC needs HTTP/2" in answer.error
