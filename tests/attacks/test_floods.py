"""HTTP/2 floods and header bombs against a real worker and a real gateway.

During each, an honest caller on a connection of its own is answered; afterwards the attacker's connection is closed
or its requests are refused, and the process has not grown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from gateway_process import StartGateway
from hostile_client import ECHO_BYTES, Victim, connected, message, parse_answers, read_to_end, talk
from hostile_http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOOD,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    WINDOW_UPDATE,
    frame,
    http2,
    rest_block,
    settings,
    window_update,
)
from hostile_models import write_repository
from server_process import StartServer

LIVE = rest_block("GET", "/v2/health/live")
POST = rest_block("POST", "/v2/models/echo/infer")
OPEN = frame(HEADERS, END_HEADERS, 1, POST)


@pytest.fixture(scope="module")
def worker(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    repository = write_repository(tmp_path_factory.mktemp("floods"))
    with server_factory(repository, "--max-body-bytes", str(4 << 20), "--limit", "idle_timeout=60") as server:
        yield Victim(server)


@pytest.fixture(scope="module")
def gateway(worker: Victim, gateway_factory: StartGateway) -> Iterator[Victim]:
    with gateway_factory([worker.server], "--limit", f"max_body_bytes={4 << 20}") as gateway:
        yield Victim(gateway)


@pytest.fixture(params=["worker", "gateway"])
def victim(request: pytest.FixtureRequest) -> Iterator[Victim]:
    found: Victim = request.getfixturevalue(request.param)
    yield found
    found.check()


def honest(victim: Victim) -> None:
    (answer,) = parse_answers(talk(victim.http, message("POST", "/v2/models/echo/infer", ECHO_BYTES)))
    assert answer.status == 200


def _requests(after: Callable[[int], bytes]) -> bytes:
    """Requests, each with a frame behind it."""
    return b"".join(frame(HEADERS, END_HEADERS, stream, POST) + after(stream) for stream in range(1, FLOOD, 2))


#: Names and values that are new to every table: they cost most to decode.
_LITERALS = b"\x40\x01a\x7f\x80\x7f" + b"x" * 255
FLOODS = {
    "rapid reset (CVE-2023-44487)": _requests(lambda stream: frame(RST_STREAM, 0, stream, b"\0\0\0\x08")),
    "resets by the server (CVE-2025-8671)": _requests(lambda stream: frame(WINDOW_UPDATE, 0, stream, b"\0\0\0\0")),
    "PING (CVE-2019-9512)": frame(PING, 0, 0, b"8 bytes!") * FLOOD,
    "SETTINGS (CVE-2019-9515)": settings({3: 100}) * FLOOD,
    "SETTINGS of 20 values": settings(dict.fromkeys(range(20, 40), 1 << 14)) * FLOOD,
    "PRIORITY (CVE-2019-9513)": b"".join(frame(PRIORITY, 0, each, b"\0\0\0\0\1") for each in range(3, 2 * FLOOD, 2)),
    "empty DATA (CVE-2019-9518)": OPEN + frame(DATA, 0, 1) * FLOOD,
    "padding alone": OPEN + frame(DATA, PADDED, 1, b"\xff" + b"\0" * 255) * 8000,
    "empty HEADERS and CONTINUATION": frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1) * FLOOD,
    "CONTINUATION (CVE-2024-27316)": frame(HEADERS, 0, 1, LIVE) + frame(CONTINUATION, 0, 1, _LITERALS) * 1000,
    "WINDOW_UPDATE of the connection": window_update(0, 1) * FLOOD,
    "WINDOW_UPDATE of a stream": OPEN + window_update(1, 1) * FLOOD,
    "unknown frames": frame(0xFA, 0, 0, b"x") * FLOOD,
    "answers to PINGs that were not sent": frame(PING, ACK, 0, b"8 bytes!") * FLOOD,
    "answers to SETTINGS that were not sent": frame(4, ACK, 0) * FLOOD,
    "PUSH_PROMISE": frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + LIVE) * 100,
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods(victim: Victim, tried: Counter[str], name: str) -> None:
    flood = FLOODS[name]
    with http2(victim.http) as end:
        quarter = len(flood) // 4
        for start in range(0, len(flood), quarter):
            end.send(flood[start : start + quarter])
            honest(victim)
        gone = end.until_gone()
        assert gone.code in (ENHANCE_YOUR_CALM, -1) or name == "PUSH_PROMISE", gone
    tried["HTTP/2 floods → connections closed"] += 1


def test_header_bombs(victim: Victim, tried: Counter[str]) -> None:
    """One field of 4 KB put into the table and then named thousands of times by a byte each; and large ones."""
    bombs = (
        b"\x40\x04bomb\x7f\xa1\x1e" + b"x" * 4000 + b"\xbe" * 16_000,
        b"".join(b"\x00\x03a%02d\x01x" % (each % 100) for each in range(2000)),
        b"\x3f\xff\xff\xff\xff\x0f",  # a dynamic table of 4 GiB
        b"\x20\x3f\xe1\x1f" * 4000,  # its size changed all the time
    )
    for bomb in bombs:
        with http2(victim.http) as end:
            for stream in range(1, 41, 2):
                end.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, LIVE + bomb))
            honest(victim)
        tried["HPACK bombs → sent, others served, memory bounded"] += 20
    with http2(victim.http) as end:
        end.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, LIVE + bombs[0]))
        assert end.response(1).status == 431


def test_windows_that_stay_closed(victim: Victim, tried: Counter[str]) -> None:
    """CVE-2019-9511, -9517: answers that the caller asks for and never takes."""
    with http2(victim.http, PREFACE + settings({4: 0})) as end:
        for stream in range(1, 201, 2):
            end.send(frame(HEADERS, END_HEADERS, stream, POST), frame(DATA, END_STREAM, stream, ECHO_BYTES))
        for _ in range(5):
            honest(victim)
        victim.check()
        tried["answers that are asked for and never taken → held, others served, memory bounded"] += 100
    # As above, by a window that is opened and closed.
    with http2(victim.http, PREFACE + settings({4: 1})) as end:
        end.send(frame(HEADERS, END_HEADERS, 1, POST), frame(DATA, END_STREAM, 1, ECHO_BYTES))
        for _ in range(2000):
            end.send(settings({4: 0}), settings({4: 1}))
        honest(victim)
        tried["answers that are asked for and never taken → held, others served, memory bounded"] += 1


def test_http1_floods(victim: Victim, tried: Counter[str]) -> None:
    """Pipelined without reading; heads without end; a thousand connections that send a byte."""
    with connected(victim.http) as connection:
        connection.settimeout(1)
        try:
            for _ in range(20):
                connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n" * 500)
        except OSError:
            pass
        honest(victim)
    for data in (b"a: b\r\n" * 20_000, b"x" * 200_000):
        with connected(victim.http) as connection:
            try:
                connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + data)
            except OSError:
                pass
            assert b"HTTP/1.1 200" not in read_to_end(connection)[:20]
        honest(victim)
    tried["HTTP/1.1 floods → sent, others served, memory bounded"] += 3
