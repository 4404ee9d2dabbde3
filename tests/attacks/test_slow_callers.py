"""Callers that are slow, silent or many: each is cut off in time, and an honest one is served meanwhile."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gateway_process import StartGateway
from hostile_client import ECHO_BYTES, Victim, connected, message, parse_answers, read_to_end, talk
from hostile_http2 import END_HEADERS, HEADERS, PREFACE, frame, grpc_block, rest_block, settings
from hostile_models import write_repository
from server_process import StartServer

LIMITS = {"head_timeout": 2, "body_timeout": 2, "idle_timeout": 4, "write_timeout": 3, "max_connections": 60}
FLAGS = tuple(word for name, value in LIMITS.items() for word in ("--limit", f"{name}={value}"))


@pytest.fixture(scope="module")
def worker(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with server_factory(write_repository(tmp_path_factory.mktemp("slow"))) as server:
        yield Victim(server)


@pytest.fixture(scope="module")
def gateway(worker: Victim, gateway_factory: StartGateway) -> Iterator[Victim]:
    with gateway_factory([worker.server], *FLAGS) as gateway:
        yield Victim(gateway)


@pytest.fixture(scope="module")
def guarded(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """A worker with the same limits; the gateway's own worker has none, since it is asked by the gateway."""
    with server_factory(write_repository(tmp_path_factory.mktemp("slow")), *FLAGS) as server:
        yield Victim(server)


@pytest.fixture(params=["guarded", "gateway"])
def victim(request: pytest.FixtureRequest) -> Iterator[Victim]:
    found: Victim = request.getfixturevalue(request.param)
    yield found
    found.check()


def honest(victim: Victim) -> None:
    (answer,) = parse_answers(talk(victim.http, message("POST", "/v2/models/echo/infer", ECHO_BYTES)))
    assert answer.status == 200


BEGINNINGS = {
    "nothing": b"",
    "a part of a request line": b"POST /v2/mod",
    "a head without end": b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nX-A: ",
    "a body without end": b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
    "chunks without end": b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{",
    "an Expect without body": b"POST /v2 HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    "a part of a preface": PREFACE[:10],
    "a preface alone": PREFACE,
    "settings alone": PREFACE + settings(),
    "a part of a frame": PREFACE + settings() + frame(HEADERS, END_HEADERS, 1, rest_block("GET", "/v2"))[:12],
    "HEADERS without CONTINUATION": PREFACE + settings() + frame(HEADERS, 0, 1, rest_block("GET", "/v2")),
    "a request without its idle end": b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
}


def test_every_slow_beginning_is_cut_off(victim: Victim, tried: Counter[str]) -> None:
    """All of them at once, three of each; the honest caller is asked until the last one has been cut off."""
    with ExitStack() as opened:
        slow = []
        for beginning in BEGINNINGS.values():
            for _ in range(3):
                connection = opened.enter_context(connected(victim.http))
                connection.sendall(beginning)
                slow.append(connection)
        honest(victim)
        for connection in slow:
            # Returns when the server has closed; a time limit of the socket's says that it has not.
            read_to_end(connection)
            honest(victim)
            tried["slow, silent and half-open connections → closed in time"] += 1


def test_calls_whose_messages_never_come(victim: Victim, tried: Counter[str]) -> None:
    with connected(victim.http) as connection:
        connection.sendall(PREFACE + settings())
        for stream in range(1, 41, 2):
            connection.sendall(frame(HEADERS, END_HEADERS, stream, grpc_block("ModelInfer")))
        honest(victim)
        read_to_end(connection)
        tried["calls whose message never comes → closed in time"] += 20


def test_connections_up_to_the_limit_and_beyond(victim: Victim, tried: Counter[str]) -> None:
    """Beyond the limit a connection is refused with a reason; when the idle ones are cut off, others are served."""
    with ExitStack() as opened:
        idle = [opened.enter_context(connected(victim.http)) for _ in range(LIMITS["max_connections"] + 20)]
        answers = [read_to_end(connection) for connection in idle]
        assert sum(answer.startswith(b"HTTP/1.1 503 ") for answer in answers) >= 20
        tried["idle connections beyond the limit"] += 20
    honest(victim)


def test_a_caller_that_never_reads(victim: Victim, tried: Counter[str]) -> None:
    """Answers of 16 MiB that nobody takes: the connection ends, and with it what was kept for it."""
    body = b'{"inputs":[{"name":"size","shape":[1],"datatype":"INT32","data":[4194304]}],'
    body += b'"parameters":{"binary_data_output":true}}'
    request = message("POST", "/v2/models/large/infer", body).replace(b"Connection: close\r\n", b"")
    with connected(victim.http) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request * 3)
        for _ in range(5):
            honest(victim)
        victim.check()
        tried["answers that nobody reads → held, others served, memory bounded"] += 3
