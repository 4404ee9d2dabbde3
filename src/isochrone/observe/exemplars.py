"""Exemplars: the last sampled trace of each bucket of a histogram, so that a latency leads to a trace. Pure.

Bounded: one per bucket. Only OpenMetrics pages show them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client.samples import Exemplar as ShownExemplar
from prometheus_client.samples import Timestamp

_LABEL: Final = "trace_id"


class Exemplar(NamedTuple):
    """One value of a bucket, the trace that it belongs to, and when it was measured on the wall clock."""

    trace_id: str
    value_ns: int
    wall_ns: int


#: By the number of the bucket.
Exemplars = Mapping[int, Exemplar]


def with_exemplars(
    buckets: Sequence[tuple[str, float]], exemplars: Exemplars
) -> list[tuple[str, float] | tuple[str, float, ShownExemplar]]:
    """The buckets of a histogram as ``prometheus_client`` takes them, each with its exemplar if it has one."""
    shown: list[tuple[str, float] | tuple[str, float, ShownExemplar]] = list(buckets)
    for number, (trace_id, value_ns, wall_ns) in exemplars.items():
        bound, count = buckets[number]
        when = Timestamp(wall_ns // 1_000_000_000, wall_ns % 1_000_000_000)
        shown[number] = (bound, count, ShownExemplar({_LABEL: trace_id}, value_ns / 1e9, when))
    return shown
