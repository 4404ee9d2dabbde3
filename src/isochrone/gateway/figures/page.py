"""The page of a gateway's figures as it goes to controllers. Pure data, as compact JSON.

Counters are totals since the start of the process (``incarnation``): a controller takes the difference of two pages, so
that a lost page loses nothing. Rows are arrays. Fields are only ever added, at the end and with defaults: gateways and
controllers of two releases may share a fleet for a while.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

#: Where gateways serve it, on their metrics port.
FIGURES_PATH: Final = "/figures"
#: Largest page in bytes, some eight times that of the limits below; a larger one is not read.
MOST_BYTES: Final = 4 << 20
#: Rows of a page: of models, those with the most requests; of workers.
MOST_MODELS: Final = 512
MOST_WORKERS: Final = 4096

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class VersionCounts(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One version of a model; "": requests that no version was found for."""

    version: str
    #: Requests that ended, by the number of the outcome (``latencies.version_durations.OUTCOMES``).
    outcomes: tuple[_Count, _Count, _Count, _Count, _Count]
    #: Durations of answered requests: by bucket (``BUCKET_BOUNDS_NS``), without empty ones; and their sum.
    durations: dict[int, _Count] = {}
    sum_ns: _Count = 0
    #: The gateway's own share of those that are no streams.
    own_ns: _Count = 0
    own_count: _Count = 0
    #: Levels, by the newest load reports: the sums over its workers of the wait for an instance and of the run of a
    #: new request, and how many workers reported each.
    queue_ns: _Count = 0
    queue_count: _Count = 0
    compute_ns: _Count = 0
    compute_count: _Count = 0


class ModelCounts(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One model: all its versions together, and each with anything to count."""

    model: str
    requests: _Count = 0
    retries: _Count = 0
    hedges: _Count = 0
    #: Rejections that are no server's fault: quotas, quarantined requests, requests that are not allowed or too large.
    excused: _Count = 0
    versions: tuple[VersionCounts, ...] = ()


class WorkerLoad(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One worker, as this gateway knows it now."""

    address: str
    tier: str = ""
    device: str = ""
    is_healthy: bool = True
    is_ejected: bool = False
    is_draining: bool = False
    is_standby: bool = False
    #: Requests from this gateway.
    own_in_flight: _Count = 0
    #: By its newest load report: requests from everybody, those that wait, the longest wait of its models, and the age
    #: of the report in ms. -1: it has reported nothing lately.
    in_flight: int = -1
    queued: _Count = 0
    wait_ns: _Count = 0
    age_ms: int = -1
    #: The shortest time over the network and back; -1: not measured.
    round_trip_us: int = -1


class FiguresPage(msgspec.Struct, frozen=True):
    """One process of a gateway."""

    incarnation: str
    #: Milliseconds since its start.
    uptime_ms: _Count
    in_flight: _Count = 0
    #: Those that have had a request.
    models: tuple[ModelCounts, ...] = ()
    workers: tuple[WorkerLoad, ...] = ()
    #: Models, and workers, that are not shown since there are more than the limits.
    left_out: _Count = 0
    left_out_workers: _Count = 0


_decoder = msgspec.json.Decoder(FiguresPage)


def encode(page: FiguresPage) -> bytes:
    return msgspec.json.encode(page)


def decode(content: bytes) -> FiguresPage:
    """Raise ``msgspec.MsgspecError`` for anything else."""
    return _decoder.decode(content)
