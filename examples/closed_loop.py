"""A small load generator: connections that each send a request, wait for the answer, and send the next.

Closed loop: a slow server gets fewer requests, so these figures hold for callers that wait for each answer, not for
independent callers. The generator shares the machine with the server it measures.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, cast

import numpy as np

Requests = Iterator[bytes]


@dataclass
class Tally:
    """The results of one model's connections."""

    model: str
    milliseconds: list[float] = field(default_factory=list)
    failures: int = 0
    first_failure: str = ""
    #: Heads of the answers, if they are needed.
    heads: list[bytes] | None = None

    def fail(self, reason: str) -> None:
        self.failures += 1
        self.first_failure = self.first_failure or reason


def encode(model: str, name: str, datatype: str, array: Any, parameters: dict[str, Any], extra: str = "") -> bytes:
    """One complete HTTP request with a binary tensor: head, JSON, data."""
    tensor = {"name": name, "datatype": datatype, "shape": list(array.shape)}
    body = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": array.nbytes}}],
            "parameters": {**parameters, "binary_data_output": True},
        }
    ).encode()
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: localhost\r\n{extra}"
        f"inference-header-content-length: {len(body)}\r\ncontent-length: {len(body) + array.nbytes}\r\n\r\n"
    )
    data: bytes = array.tobytes()
    return head.encode() + body + data


class Connection(asyncio.Protocol):
    """Send what ``requests`` yields, one at a time, until ``stop`` or until there is no more."""

    def __init__(self, requests: Requests, tally: Tally) -> None:
        self._requests = requests
        self._tally = tally
        self._received = b""
        self._expected = -1
        self._sent_at = 0
        self.stopping = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        request = None if self.stopping else next(self._requests, None)
        if request is None:
            self.stopping = True
            self._transport.close()
            return
        self._sent_at = perf_counter_ns()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received = self._received + data if self._received else data
        if self._expected < 0:
            head, found, _ = self._received.partition(b"\r\n\r\n")
            if not found:
                return
            if self._tally.heads is not None:
                self._tally.heads.append(head)
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._expected = len(head) + 4 + int(length or b"0")
        if len(self._received) < self._expected:
            return
        tally = self._tally
        if self._received.startswith(b"HTTP/1.1 200 "):
            tally.milliseconds.append((perf_counter_ns() - self._sent_at) / 1e6)
        else:
            tally.fail(self._received[-300:].decode("utf-8", "replace"))
        self._received, self._expected = b"", -1
        self._send()

    def give_up(self) -> None:
        """Stop without waiting for the answer."""
        if not self.closed.done():
            self.closed.set_result(None)
            self._tally.fail("no answer within 5 s of the end")

    def connection_lost(self, error: Exception | None) -> None:
        if self.closed.done():
            return
        if error is not None or not self.stopping:
            self._tally.fail(f"connection lost: {error or 'closed by the server'}")
        self.closed.set_result(None)


async def drive(port: int, plan: list[tuple[Requests, Tally]], seconds: float) -> None:
    """One connection for each part of the plan, all at the same time, for ``seconds``."""
    loop = asyncio.get_running_loop()
    connections: list[Connection] = []
    for requests, tally in plan:

        def make(requests: Requests = requests, tally: Tally = tally) -> Connection:
            return Connection(requests, tally)

        _, connection = await loop.create_connection(make, "127.0.0.1", port)
        connections.append(connection)
    await asyncio.wait([connection.closed for connection in connections], timeout=seconds)
    for connection in connections:
        connection.stopping = True
    # Requests in flight are answered and counted; a server that no longer answers is not waited for.
    await asyncio.wait([connection.closed for connection in connections], timeout=5)
    for connection in connections:
        connection.give_up()


def repeated(request: bytes) -> Requests:
    while True:
        yield request


def sequences(model: str, name: str, length: int, first_id: int, step: int) -> Requests:
    """Sequences one after the other: START, the middle, END; then the next with another id."""
    sequence_id = first_id
    while True:
        for position in range(length):
            measured = np.array([[position, -position]], np.float32)
            marks = {"sequence_start": position == 0, "sequence_end": position == length - 1}
            yield encode(model, name, "FP32", measured, {"sequence_id": sequence_id, **marks})
        sequence_id += step
