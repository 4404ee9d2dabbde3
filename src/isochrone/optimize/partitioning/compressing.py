"""What zstd makes of the tensors that cross, and the time that it takes on each side, measured in the workers.

A worker compresses its answers, and decompresses its requests, with the code of a remote model: the edge is asked for
what crosses in zstd, and the core is sent it so. A worker's own times show the work alone, whatever the link does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from isochrone.optimize.partitioning.choices import Option
from isochrone.optimize.partitioning.facts import Arrays
from isochrone.optimize.partitioning.tiers import Rejected, TierWorker, request_body
from isochrone.protocol.compression import codec, zstd

Typical = Callable[[Callable[[], float]], float]


@dataclass(frozen=True, slots=True)
class CoreCoding:
    """``seconds``: decompressing the request, and compressing the answer if that makes it smaller."""

    seconds: float
    #: None: the answer is sent as it is.
    received_bytes: int | None
    #: In which the edge decompresses the answer, measured where this code runs.
    answer_seconds: float


def packed_bytes(rows: Sequence[Arrays]) -> int | None:
    """The mean size of requests with these inputs in zstd; None: they are sent as they are."""
    sizes = []
    for inputs in rows:
        body, _ = request_body(inputs)
        packed = zstd.compress([body])
        if len(body) < codec.MIN_ZSTD or not codec.is_smaller(packed, len(body)):
            return None
        sizes.append(sum(map(len, packed)))
    return round(mean(sizes))


def compressing_seconds(edge: TierWorker, model: str, inputs: Arrays, typical: Typical) -> float:
    """The time in which the worker compresses the outputs of a model that it has loaded."""
    if edge.answer(model, inputs, in_zstd=True).encoding != "zstd":
        raise Rejected(f"{edge.tier}: {edge.url} does not answer in zstd; install there {zstd.PACKAGE}")
    plain = typical(lambda: edge.answer(model, inputs).serialise_seconds)
    return max(0.0, typical(lambda: edge.answer(model, inputs, in_zstd=True).serialise_seconds) - plain)


def core_coding(core: TierWorker, model: str, inputs: Arrays, typical: Typical) -> CoreCoding:
    """Of a model that the worker has loaded."""

    def seconds(in_zstd: bool) -> float:
        answer = core.answer(model, inputs, in_zstd=in_zstd, as_zstd=in_zstd)
        return answer.dispatch_seconds + answer.serialise_seconds

    answer = core.answer(model, inputs, in_zstd=True, as_zstd=True)
    taken = max(0.0, typical(lambda: seconds(True)) - typical(lambda: seconds(False)))
    if answer.encoding != "zstd":
        return CoreCoding(taken, None, 0.0)
    packed = b"".join(zstd.compress([answer.body]))

    def unpack() -> float:
        begun = time.perf_counter()
        codec.Inflation(b"zstd", packed, 1 << 40, expected=True).finish()
        return time.perf_counter() - begun

    return CoreCoding(taken, answer.sent_bytes, typical(unpack))


def in_zstd(plain: Option, name: str, packed: int, compressing: float, coding: CoreCoding) -> Option:
    """The same option with what crosses in zstd. Pure."""
    received = coding.received_bytes
    own = compressing + coding.answer_seconds
    return Option(
        name,
        plain.edge_seconds + own,
        plain.core_seconds + coding.seconds,
        packed,
        plain.received_bytes if received is None else received,
        plain.error,
        own,
    )
