"""Clients that are slow, silent, half gone or many: each is bounded in time and memory, and the others are served."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.request import urlopen

import pytest

from hostile_client import ECHO_BYTES, PATIENCE, Victim, connected, infer, message, parse_answers, read_to_end
from hostile_http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    frame,
    grpc_block,
    http2,
    rest_block,
    settings,
    window_update,
)
from hostile_models import write_repository
from server_process import StartServer

pytestmark = pytest.mark.long

#: Longer than a busy machine stalls: those who are not slow on purpose must not be taken for it.
SECONDS = 4
#: Bytes the server may hold for its clients.
BUFFERED = 100 << 20


@pytest.fixture(scope="module")
def victim(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    repository = write_repository(tmp_path_factory.mktemp("hostile"))
    arguments = ("--head-timeout", str(SECONDS), "--body-timeout", str(SECONDS), "--idle-timeout", str(2 * SECONDS))
    arguments += ("--limit", f"max_buffered_bytes={BUFFERED}", "--limit", f"max_body_bytes={BUFFERED // 2}")
    with server_factory(repository, *arguments) as server:
        yield Victim(server)


@pytest.fixture(autouse=True)
def _unharmed(victim: Victim) -> Iterator[None]:
    yield
    victim.check()


class Dripper(threading.Thread):
    """Sends a byte every tenth of a second, until the server has had enough."""

    def __init__(self, connection: socket.socket, data: bytes) -> None:
        super().__init__()
        self.sent = 0
        self.over = threading.Event()
        self._connection = connection
        self._data = data

    def run(self) -> None:
        for index in range(len(self._data)):
            if self.over.wait(0.1):
                return
            try:
                self._connection.sendall(self._data[index : index + 1])
            except OSError:
                return
            self.sent += 1


@pytest.mark.parametrize(
    ("at_once", "dripped", "limit"),
    [
        (b"", message("GET", "/v2/health/live") * 3, f"head_timeout ({SECONDS} s)"),
        (
            message("POST", "/v2/models/echo/infer", ECHO_BYTES)[: -len(ECHO_BYTES)],
            ECHO_BYTES * 3,
            f"body_timeout ({SECONDS} s)",
        ),
        (
            b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n",
            b"x" * 1000,
            f"body_timeout ({SECONDS} s)",
        ),
        (
            b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1\r\nx\r\n" * 100,
            f"body_timeout ({SECONDS} s)",
        ),
    ],
    ids=["head", "body", "large body", "chunks"],
)
def test_a_dripping_client_is_408_while_others_are_served(
    victim: Victim, at_once: bytes, dripped: bytes, limit: str
) -> None:
    with connected(victim.http) as connection:
        connection.sendall(at_once)
        dripper = Dripper(connection, dripped)
        dripper.start()
        try:
            served = slowest = 0
            while not select.select([connection], [], [], 0)[0]:
                before = dripper.sent
                assert infer(victim.http, "echo", ECHO_BYTES).status == 200
                # The slow one's bytes, ten a second, are the clock: a stall of the machine stops it, too.
                slowest = max(slowest, dripper.sent - before)
                served += 1
            (answer,) = parse_answers(read_to_end(connection))
        finally:
            dripper.over.set()
            dripper.join()
        assert answer.status == 408
        assert limit in answer.error
    assert served > 20
    assert slowest < 10


def test_a_dripping_http2_client_is_sent_away(victim: Victim) -> None:
    with http2(victim.http, PREFACE + settings()) as end:
        end.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, rest_block("GET", "/v2"))[:12])
        gone = end.until_gone()
    assert f"head_timeout ({SECONDS} s)" in gone.reason


def test_a_body_that_never_comes_is_408_on_its_stream(victim: Victim) -> None:
    with http2(victim.http) as end:
        end.send(frame(HEADERS, END_HEADERS, 1, rest_block("POST", "/v2/models/echo/infer")))
        end.send(frame(HEADERS, END_HEADERS, 3, grpc_block("ModelInfer")), frame(DATA, 0, 3, b"\0"))
        answers = end.responses(1, 3)
    assert answers[1].status == 408
    assert answers[3].grpc_status == 4


def test_silent_clients_are_closed_when_idle_too_long(victim: Victim) -> None:
    started = time.monotonic()
    with connected(victim.http) as silent, connected(victim.http) as spoke, connected(victim.grpc) as second:
        spoke.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n")
        second.sendall(PREFACE + settings())
        for connection in (silent, spoke, second):
            read_to_end(connection)
    assert 1.5 * SECONDS < time.monotonic() - started < PATIENCE


def test_a_client_that_half_closes_counts_as_gone(victim: Victim) -> None:
    """Its connection is closed at once; an answer that had been written by then is whole."""
    started = time.monotonic()
    whole = message("POST", "/v2/models/echo/infer", ECHO_BYTES).replace(b"Connection: close\r\n", b"")
    for _ in range(20):
        with connected(victim.http) as connection:
            connection.sendall(whole)
            connection.shutdown(socket.SHUT_WR)
            assert [answer.status for answer in parse_answers(read_to_end(connection))] in ([], [200])
    assert time.monotonic() - started < PATIENCE


def test_two_thousand_connections_opened_and_closed(victim: Victim) -> None:
    whole = message("POST", "/v2/models/echo/infer", ECHO_BYTES)
    for round_ in range(20):
        with ExitStack() as held:
            connections = [held.enter_context(connected(victim.http)) for _ in range(100)]
            for index, connection in enumerate(connections):
                # Nothing, a part, a preface, or a whole request whose answer nobody waits for.
                connection.sendall((b"", whole[: 10 + round_ * 7], PREFACE, whole)[index % 4])
    victim.check()


LARGE = json.dumps(
    {
        "inputs": [{"name": "size", "shape": [1], "datatype": "INT32", "data": [1 << 20]}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
).encode()


def test_slow_readers_of_large_answers_hold_bounded_memory(victim: Victim) -> None:
    """Fifty requests of 4 MiB each, pipelined by one client that reads nothing: 200 MiB if all were answered."""
    request = message("POST", "/v2/models/large/infer", LARGE).replace(b"Connection: close\r\n", b"")
    with connected(victim.http) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request * 50)
        for _ in range(30):
            assert infer(victim.http, "echo", ECHO_BYTES).status == 200
            victim.check()
        time.sleep(0.5)
        victim.check()


def buffered_bytes(victim: Victim, name: str = "isochrone_buffered_bytes") -> float:
    """What the server says it holds for its clients."""
    with urlopen(f"http://127.0.0.1:{victim.server.metrics_port}/metrics", timeout=PATIENCE) as page:
        lines = page.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def ask_large(stream: int, model: str = "large") -> bytes:
    block = rest_block("POST", f"/v2/models/{model}/infer")
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, LARGE)


def test_a_slow_http2_reader_holds_bounded_memory_and_gets_its_answers(victim: Victim) -> None:
    """Answers of 4 MiB, and no window: the next request is refused, and nothing of what was taken is lost."""
    numbers = tuple(range(1, 27, 2))
    with http2(victim.http, PREFACE + settings({4: 0})) as end:
        end.send(*(ask_large(number) for number in numbers))
        while buffered_bytes(victim) < BUFFERED // 2:
            assert infer(victim.http, "echo", ECHO_BYTES).status == 200
        end.send(ask_large(41), window_update(41, 1000))
        refused = end.response(41)
        assert refused.status == 503
        assert f"max_buffered_bytes ({BUFFERED})" in refused.body.decode()
        end.send(window_update(0, 1 << 30), *(window_update(number, 1 << 30) for number in numbers))
        answers = end.responses(*numbers)
        # Whether the last ones were refused, too, depends on how soon the first were computed.
        sizes = {len(answer.body) for answer in answers.values()} - {len(refused.body)}
        assert len(sizes) == 1
        assert sizes.pop() > 4 << 20
        while buffered_bytes(victim):
            pass
        end.send(ask_large(43), window_update(43, 1 << 30))
        assert end.response(43).status == 200


def test_hundreds_of_large_answers_that_nobody_reads_stay_within_the_budget(victim: Victim) -> None:
    """All asked for before the first is computed: 1.6 GiB, if all were."""
    numbers = tuple(range(1, 801, 2))
    with http2(victim.http, PREFACE + settings({4: 0})) as end:
        end.send(*(ask_large(number, "late") for number in numbers), window_update(numbers[-1], 1000))
        refused = end.response(numbers[-1])
        assert refused.status == 503
        assert f"max_buffered_bytes ({BUFFERED})" in refused.body.decode()
        assert infer(victim.http, "echo", ECHO_BYTES).status == 200
        victim.check()
    assert buffered_bytes(victim, "isochrone_buffered_peak_bytes") <= BUFFERED
