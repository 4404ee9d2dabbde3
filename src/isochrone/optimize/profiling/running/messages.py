"""What the command and the process that runs the model send each other: one JSON object per line."""

from __future__ import annotations

from typing import Any

import msgspec


class Open(msgspec.Struct, tag=True, frozen=True):
    """The model to run. The first message."""

    repository: str
    model: str
    version: int
    #: Input → the sizes of its dimensions, without the batch.
    shapes: dict[str, list[int]]


class Measure(msgspec.Struct, tag=True, frozen=True):
    """Run one configuration for at least ``least_seconds`` and about ``seconds`` at most."""

    batch: int
    threads: int
    instances: int
    least_seconds: float
    seconds: float


class ProfileOperators(msgspec.Struct, tag=True, frozen=True):
    batch: int
    threads: int
    seconds: float


class Opened(msgspec.Struct, tag=True, frozen=True):
    """The runtime is imported."""


class Measured(msgspec.Struct, tag=True, frozen=True):
    run_ns: float
    p99_ns: float
    rows_per_second: float
    runs: int
    memory_bytes: int | None
    #: CPU time of other processes meanwhile.
    other_seconds: float
    seconds: float


class Operator(msgspec.Struct, frozen=True):
    """One kind of operator: its share of all operators' time."""

    name: str
    share: float
    microseconds_per_run: float
    calls_per_run: float


class Operators(msgspec.Struct, tag=True, frozen=True):
    #: Slowest first.
    operators: list[Operator]


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The model, its configuration or its inputs are at fault; the process goes on."""

    message: str


Request = Open | Measure | ProfileOperators
Response = Opened | Measured | Operators | Failed

_encoder = msgspec.json.Encoder()


def encode(message: Any) -> bytes:
    return _encoder.encode(message) + b"\n"


def decode_request(line: bytes) -> Request:
    request: Request = msgspec.json.decode(line, type=Request)
    return request


def decode_response(line: bytes) -> Response:
    response: Response = msgspec.json.decode(line, type=Response)
    return response
