"""A fleet as the simulator needs it: workers, models, their load and times, and the gateways' rules. Pure data.

``isochrone what-if --save-situation`` writes one as JSON, and ``--situation`` reads it: a question can be answered
without the fleet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from isochrone.control.placement.needs import BatchCurve
from isochrone.errors import InvalidArgument

#: Of one request and one batch, in rows; of a situation, workers and models.
_MOST_ROWS = 65_536
_MOST_WORKERS = 10_000
_MOST_MODELS = 10_000
#: Models on workers, over all workers: each is a queue of its own.
_MOST_PLACES = 100_000


class MeasuredModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What callers of a model saw lately, by the gateways' counts."""

    p50_ms: float = 0.0
    p99_ms: float = 0.0
    #: Shares of all requests: not answered by the deadline; rejected for another reason; failed.
    missed: float = 0.0
    rejected: float = 0.0
    failed: float = 0.0


class SituationModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model that gets requests."""

    name: str
    #: Requests per second of all callers.
    rate: float
    #: By kind of device: (rows, ms) of a batch, by growing rows. The kind "" counts for those that are not named.
    curves: dict[str, tuple[tuple[int, float], ...]]
    #: Rows of one request.
    rows: int = 1
    #: 0: its requests have no deadline.
    deadline_ms: float = 0.0
    #: 1 is the highest; 0: the worker's default.
    priority: int = 0
    #: Rows of the largest batch; 1: it does not batch. Time that the oldest request may wait for a larger batch.
    max_rows: int = 1
    delay_ms: float = 0.0
    #: Batches that one worker runs at the same time.
    instances: int = 1
    measured: MeasuredModel | None = None


class SituationWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One worker that gets requests."""

    name: str
    #: Of those of the situation.
    models: tuple[str, ...]
    pool: str = ""
    tier: str = ""
    device: str = ""
    #: From gateways to the worker, one way.
    way_ms: float = 0.05
    #: By model: how fast it is, relative to the model's curve for its kind of device. 1 where it is not named.
    speeds: dict[str, float] = {}
    #: Requests on it at the moment of the measurement; -1: not known.
    in_flight: int = -1


class Situation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fleet at one moment."""

    models: tuple[SituationModel, ...]
    workers: tuple[SituationWorker, ...]
    fleet: str = ""
    gateways: int = 1
    #: The rules of the gateways, as ``gateway.rules.file`` reads them.
    rules: dict[str, Any] = {}
    #: By model that is not simulated: why.
    left_out: dict[str, str] = {}
    #: What is not measured, and what counts in its place: one sentence each.
    assumptions: tuple[str, ...] = ()
    #: Seconds over which the load was measured; 0: it was not.
    measured_seconds: int = 0


def read_situation(content: bytes, where: str) -> Situation:
    """A situation of JSON. Raises ``InvalidArgument`` that names the text, the place and what was expected."""
    try:
        found = msgspec.json.decode(content, type=Situation)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{where}: expected a situation as --save-situation writes it: {error}") from None
    check_situation(found, where)
    return found


def check_situation(situation: Situation, where: str) -> None:
    """Raise ``InvalidArgument`` for values that make no sense."""
    if problem := next(_problems(situation), ""):
        raise InvalidArgument(f"{where}: {problem}")


def check_size(situation: Situation, where: str) -> None:
    """Raise ``InvalidArgument`` for a fleet that is too large to be simulated."""
    if problem := next(_size_problems(situation), ""):
        raise InvalidArgument(f"{where}: {problem}")


def _size_problems(situation: Situation) -> Iterator[str]:
    workers, models = len(situation.workers), len(situation.models)
    if workers > _MOST_WORKERS or not 1 <= situation.gateways <= _MOST_WORKERS:
        given = f"given {workers} and {situation.gateways}"
        yield f"expected at most {_MOST_WORKERS} workers, and from 1 to {_MOST_WORKERS} gateways, {given}"
    if models > _MOST_MODELS:
        yield f"expected at most {_MOST_MODELS} models, given {models}"
    places = sum(len(worker.models) for worker in situation.workers)
    if places > _MOST_PLACES:
        yield f"expected at most {_MOST_PLACES} models on all workers together, given {places}"


def _problems(situation: Situation) -> Iterator[str]:
    names = [model.name for model in situation.models]
    if len(set(names)) < len(names) or len({worker.name for worker in situation.workers}) < len(situation.workers):
        yield "expected each model and each worker once"
    yield from _size_problems(situation)
    for model in situation.models:
        yield from _model_problems(model)
    for worker in situation.workers:
        if unknown := sorted(set(worker.models) - set(names)):
            yield f"workers.{worker.name}.models: expected models of the situation, given '{unknown[0]}'"
        if not 0 <= worker.way_ms < 60_000 or not all(0 < speed < math.inf for speed in worker.speeds.values()):
            yield f"workers.{worker.name}: expected a way from 0 to 60000 ms and speeds above 0"


def _model_problems(model: SituationModel) -> Iterator[str]:
    at = f"models.{model.name}"
    if not 0 <= model.rate < math.inf or not 0 <= model.deadline_ms < math.inf or not 0 <= model.delay_ms < math.inf:
        yield f"{at}: expected a rate, a deadline and a delay of 0 or more"
    if not 1 <= model.rows <= _MOST_ROWS or not 1 <= model.max_rows <= _MOST_ROWS or not 1 <= model.instances <= 4096:
        yield f"{at}: expected from 1 to {_MOST_ROWS} rows, and from 1 to 4096 instances"
    if not model.curves:
        yield f"{at}.curves: expected the time of a batch for at least one kind of device"
    for device, points in model.curves.items():
        try:
            BatchCurve(tuple((rows, milliseconds / 1000) for rows, milliseconds in points))
        except InvalidArgument as error:
            yield f"{at}.curves.{device}: {error.message}"
