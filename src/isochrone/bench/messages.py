"""Messages between the command and its generator processes: JSON, one a line. Columns of a result follow as bytes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from isochrone.bench.results.outcomes import Outcomes

#: In the order in which they are sent.
COLUMNS = tuple(
    (field.name, np.dtype({"outcome": "u1", "kind": "u2"}.get(field.name, "i8"))) for field in fields(Outcomes)
)


class Prepare(msgspec.Struct, tag="prepare"):
    """To a generator: the first message."""

    #: A ``Workload`` as JSON.
    workload: str
    #: The inputs of each kind's model: name, datatype, shape.
    declared: list[list[tuple[str, str, list[int]]]]
    index: int
    count: int
    first_sequence: int


class Start(msgspec.Struct, tag="start"):
    """To a generator: the instant at which all of them begin, of the machine's monotonic clock."""

    at: int


class Stop(msgspec.Struct, tag="stop"):
    """To a generator: the window ends at this instant, and what was measured is sent soon after it."""

    at: int


class Ready(msgspec.Struct, tag="ready"):
    """From a generator: connected and prepared."""


class Report(msgspec.Struct, tag="report"):
    """From a generator: ``generator.Progress``."""

    seconds: float
    counts: tuple[int, ...]
    in_flight: int
    median_ns: int
    p99_ns: int


class Failed(msgspec.Struct, tag="failed"):
    """From a generator: the last message of one that cannot run."""

    message: str


class Result(msgspec.Struct, tag="result"):
    """From a generator: the last message. ``requests`` entries of each column follow it, then the ``carried`` ones."""

    requests: int
    carried: int
    unfinished: int
    stalls: list[tuple[int, int]]
    seconds: float
    cpu_share: float
    lag_p50_ns: int
    lag_p99_ns: int
    lag_max_ns: int
    errors: dict[str, int]


ToGenerator = Prepare | Start | Stop
FromGenerator = Ready | Report | Failed | Result

_encoder = msgspec.json.Encoder()
decode_order = msgspec.json.Decoder(ToGenerator).decode
decode_answer = msgspec.json.Decoder(FromGenerator).decode


def encode(message: Any) -> bytes:
    return _encoder.encode(message) + b"\n"


def columns_of(outcomes: Outcomes) -> list[bytes]:
    return [np.ascontiguousarray(getattr(outcomes, name), dtype=kind).tobytes() for name, kind in COLUMNS]


def columns_size(requests: int) -> int:
    return sum(requests * kind.itemsize for _, kind in COLUMNS)


def outcomes_of(requests: int, data: bytes) -> Outcomes:
    columns: dict[str, Any] = {}
    position = 0
    for name, kind in COLUMNS:
        columns[name] = np.frombuffer(data, dtype=kind, count=requests, offset=position)
        position += requests * kind.itemsize
    return Outcomes(**columns)
