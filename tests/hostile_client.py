"""Raw sockets for the hostile suites: what no well-behaved client library would send, and what comes back.

Nothing here retries or repairs; every read has a time limit, so that a server that hangs fails a test instead of
holding it up.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

HOST = "127.0.0.1"
#: Seconds after which a server that has not answered counts as hung.
PATIENCE = 60.0


@dataclass(frozen=True)
class Answer:
    """One HTTP/1.1 answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The sentence every refusal carries."""
        return str(json.loads(self.body)["error"])


@contextmanager
def connected(port: int, timeout: float = PATIENCE) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, port), timeout=timeout) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def read_to_end(connection: socket.socket) -> bytes:
    """Everything until the server closes. A reset counts as the end; silence beyond the time limit raises."""
    received = bytearray()
    told = False
    try:
        while piece := connection.recv(1 << 16):
            received += piece
            if not told and b"connection: close" in received:
                told = True
                if b"transfer-encoding: chunked" not in received:
                    # A refused client is given time to read its refusal; this one has read it. An answer in pieces
                    # would be cut short: to the server, a client that stops sending has gone.
                    connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
    return bytes(received)


def talk(port: int, data: bytes, *, half_close: bool = False) -> bytes:
    """Sends bytes on a fresh connection and reads until the server closes it."""
    with connected(port) as connection:
        try:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return read_to_end(connection)


def parse_answers(data: bytes, *, to_head: bool = False) -> list[Answer]:
    """The HTTP/1.1 answers in a byte stream; raises when they are not well formed. ``to_head``: to a HEAD request."""
    answers: list[Answer] = []
    while data:
        head, mark, data = data.partition(b"\r\n\r\n")
        assert mark, f"an answer's head is cut short: {head[:200]!r}"
        first, *lines = head.decode("latin-1").split("\r\n")
        protocol, status, _ = first.split(" ", 2)
        assert protocol == "HTTP/1.1"
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        if int(status) == 100:
            continue
        # RFC 9110 §9.3.2: an answer to HEAD announces the body it does not carry.
        length = 0 if to_head else int(headers["content-length"])
        assert len(data) >= length, f"an answer's body has {len(data)} bytes, announced {length}"
        answers.append(Answer(int(status), headers, data[:length]))
        data = data[length:]
    return answers


def refusal(port: int, data: bytes, *, half_close: bool = False) -> Answer:
    """The one answer to bytes that end a connection."""
    answers = parse_answers(talk(port, data, half_close=half_close))
    assert len(answers) == 1, answers
    return answers[0]


def message(method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """An HTTP/1.1 request that asks for the connection to be closed, so that its answer ends the stream."""
    fields = {"Host": "test", "Connection": "close", "Content-Length": str(len(body)), **(headers or {})}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def ask(port: int, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    return refusal(port, message(method, target, body, headers))


def infer(port: int, model: str, request: Any, binary: bytes | None = None) -> Answer:
    """POST …/infer; ``request`` is a JSON value, or the bytes of one."""
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    headers = {}
    if binary is not None:
        headers = {"Inference-Header-Content-Length": str(len(body))}
        body += binary
    return ask(port, "POST", f"/v2/models/{model}/infer", body, headers)


ECHO_REQUEST = {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1.5, -2.0]}]}
ECHO_BYTES = json.dumps(ECHO_REQUEST).encode()


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


class Victim:
    """A server under attack, and the proof that it took no harm.

    ``check`` asserts that the same process still answers a good request correctly, without a hang, and that its
    resident memory has not grown by more than ``allowance`` bytes since the first good request.
    """

    def __init__(self, server: Any, allowance: int = 48 << 20) -> None:
        self.server = server
        self.http: int = server.http_port
        self.grpc: int = server.grpc_port
        self.pid: int = server.pid
        self.allowance = allowance
        self._answer_well()
        self.resident = resident_bytes(self.pid)

    def _answer_well(self) -> None:
        answer = infer(self.http, "echo", ECHO_REQUEST)
        assert answer.status == 200, answer
        assert json.loads(answer.body)["outputs"][0]["data"] == [1.5, -2.0]

    def check(self) -> None:
        self._answer_well()
        # Memory that a burst took may go back with the next sweep.
        for _ in range(300):
            grown = resident_bytes(self.pid) - self.resident
            if grown <= self.allowance:
                return
            time.sleep(0.1)
        raise AssertionError(f"resident memory grew by {grown >> 20} MiB, allowed {self.allowance >> 20} MiB")
