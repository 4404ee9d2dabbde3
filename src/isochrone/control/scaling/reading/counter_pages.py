"""Parses the pages on which gateways and workers publish their counters. Pure.

The parsers look only at what is used: for a page of a thousand models, a general Prometheus parser takes half a second,
and the controller has many pages to read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Annotated

import msgspec

from isochrone.control.scaling.reading.fleet_counters import (
    BatchCounts,
    GatewayCounts,
    ModelConfiguration,
    RequestCounts,
    VersionStatistics,
    WorkerStatistics,
)

#: Reasons of a gateway's rejections that mean that no worker could take the request, or none in time.
#: ``deadline_exceeded``: admission expected that all workers would be late, or the deadline passed in the waiting room.
#: ``unavailable``: no worker is ready, circuit breakers refuse all of them, or the waiting room is full. ``worker``:
#: workers rejected the request, and no other took it. Not ``queue_full``: that is a caller's quota.
CAPACITY_REASONS = frozenset(("deadline_exceeded", "unavailable", "worker"))

_RECEIVED = b"isochrone_gateway_requests_total"
_REJECTIONS = b"isochrone_gateway_rejections_total"
_WAITING = b"isochrone_gateway_waiting"
#: Of gateways of an earlier release: not there.
_ROUND_TRIPS = b"isochrone_gateway_worker_round_trip_seconds"
#: What stands before a quote or the end of a line, and is no escaped quote.
_PART = re.compile(rb'((?:[^"\\]|\\.)*)(?:"|$)')
#: An escaped character of a label's value.
_ESCAPE = re.compile(rb"\\(.)")

_Count = Annotated[int, msgspec.Meta(ge=0)]


def gateway_counts(page: bytes, incarnation: str, workers: Mapping[str, str] | None = None) -> GatewayCounts:
    """From the text of GET /metrics. Raise ``ValueError`` for a page that is not a gateway's.

    ``workers``: names by address; a gateway's page has addresses. The round trips to others are left out.
    """
    received: dict[str, int] = {}
    refused: dict[str, int] = {}
    turned_away: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for totals, name in ((received, _RECEIVED), (waiting, _WAITING)):
        for (model, *_), count in _samples(page, name):
            totals[model] = totals.get(model, 0) + int(count)
    for (model, reason, *_), count in _samples(page, _REJECTIONS):
        totals = refused if reason in CAPACITY_REASONS else turned_away
        totals[model] = totals.get(model, 0) + int(count)
    round_trips: dict[str, float] = {}
    if workers and _type_line(_ROUND_TRIPS) in page:
        for (address,), seconds in _samples(page, _ROUND_TRIPS, b"worker"):
            if address in workers:
                round_trips[workers[address]] = seconds
    return GatewayCounts(
        incarnation,
        {
            model: RequestCounts(count, refused.get(model, 0), turned_away.get(model, 0), waiting.get(model, 0))
            for model, count in received.items()
        },
        round_trips=round_trips,
    )


def _type_line(name: bytes) -> bytes:
    return b"# TYPE " + name + b" "


def _samples(page: bytes, name: bytes, label: bytes = b"model") -> Iterator[tuple[list[str], float]]:
    """(values of the labels, value) of each sample of a metric that is not 0. A gateway writes ``model`` first, then
    ``reason``."""
    start = page.find(_type_line(name))
    if start < 0:
        raise ValueError(f"expected a gateway's metrics with {name.decode()}, given another page")
    # The samples of a metric stand together, before the comments of the next one.
    end = page.find(b"\n# ", start)
    opening = name + b"{" + label + b'="'
    for line in page[start : end if end >= 0 else len(page)].split(b"\n")[1:]:
        if not line or line.endswith(b"} 0.0"):
            continue
        labels = line[len(opening) :]
        # A quote within a value is escaped. Between two values stands the name of the second.
        parts = labels.split(b'"') if b"\\" not in labels else _split_escaped(labels)
        count = float(parts[-1][2:])
        # Samples of another form must not be taken for none.
        if not line.startswith(opening) or parts[-1][:2] != b"} " or not isfinite(count) or count < 0:
            raise ValueError(f"{name.decode()}: expected a {label.decode()} and a number, given {line[:100]!r}")
        yield [part.decode() for part in parts[:-1:2]], count


def _split_escaped(line: bytes) -> list[bytes]:
    """As ``line.split(b'"')``, with values as they were before they were escaped."""
    parts = _PART.findall(line)[:-1]
    return [_ESCAPE.sub(lambda match: b"\n" if match[1] == b"n" else match[1], part) for part in parts]


class _Duration(msgspec.Struct, frozen=True, gc=False):
    count: _Count = 0
    ns: _Count = 0


class _Batch(msgspec.Struct, gc=False):
    batch_size: _Count
    compute_input: _Duration
    compute_infer: _Duration
    compute_output: _Duration


class _Stages(msgspec.Struct, gc=False):
    success: _Duration
    queue: _Duration
    fail: _Duration = _Duration()


class _Version(msgspec.Struct, gc=False):
    name: str
    inference_stats: _Stages
    version: str = ""
    batch_stats: list[_Batch] = []


class _Statistics(msgspec.Struct, gc=False):
    model_stats: list[_Version] = []


class _Group(msgspec.Struct, gc=False):
    count: int = 1
    gpus: list[int] = []
    passive: bool = False


class _Policy(msgspec.Struct, frozen=True, gc=False):
    decoupled: bool = False


class _Step(msgspec.Struct, gc=False):
    model_name: str


class _Ensemble(msgspec.Struct, frozen=True, gc=False):
    step: tuple[_Step, ...] = ()


class _Batching(msgspec.Struct, frozen=True, gc=False):
    max_queue_delay_microseconds: _Count = 0


class _Config(msgspec.Struct, gc=False):
    backend: str = ""
    max_batch_size: int = 0
    #: None: requests are not batched together.
    dynamic_batching: _Batching | None = None
    instance_group: list[_Group] = []
    model_transaction_policy: _Policy = _Policy()
    ensemble_scheduling: _Ensemble = _Ensemble()


# Not strict: some servers write 64-bit integers as strings, as protobuf's JSON does.
_statistics_decoder = msgspec.json.Decoder(_Statistics, strict=False)
_config_decoder = msgspec.json.Decoder(_Config, strict=False)


def worker_statistics(
    page: bytes, incarnation: str, configurations: Mapping[tuple[str, str], ModelConfiguration]
) -> WorkerStatistics:
    """From the JSON of GET /v2/models/stats. ``configurations``: by model and version, as far as they are known.

    Raise ``msgspec.MsgspecError`` for a page that is something else.
    """
    models: dict[str, dict[str, VersionStatistics]] = {}
    for each in _statistics_decoder.decode(page).model_stats:
        batches = {
            batch.batch_size: BatchCounts(
                batch.compute_infer.count, batch.compute_input.ns + batch.compute_infer.ns + batch.compute_output.ns
            )
            for batch in each.batch_stats
        }
        stages = each.inference_stats
        models.setdefault(each.name, {})[each.version] = VersionStatistics(
            batches,
            stages.queue.ns,
            stages.queue.count,
            stages.success.count,
            configurations.get((each.name, each.version)),
            stages.fail.count,
        )
    return WorkerStatistics(incarnation, models)


def model_configuration(config: bytes) -> ModelConfiguration:
    """From the JSON of GET /v2/models/MODEL/config. Raise ``msgspec.MsgspecError`` for another page."""
    found = _config_decoder.decode(config)
    # A count is per GPU that the group names.
    instances = sum(group.count * max(1, len(group.gpus)) for group in found.instance_group if not group.passive)
    return ModelConfiguration(
        max(1, instances),
        tuple(step.model_name for step in found.ensemble_scheduling.step),
        # A model that generates tokens may have a configuration without the policy that it has.
        not found.model_transaction_policy.decoupled and found.backend != "generation",
        max(1, found.max_batch_size) if found.dynamic_batching is not None else 1,
        1000 * found.dynamic_batching.max_queue_delay_microseconds if found.dynamic_batching is not None else 0,
    )
