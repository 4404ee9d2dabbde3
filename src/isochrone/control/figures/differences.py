"""What gateways counted between two of their pages. Pure.

A page has totals since the start of its process, so a page that is lost loses nothing: the next one has it all. A
process that started again is known by its incarnation, a version that a gateway has forgotten and met again by a total
that fell: both count from 0. No count is ever negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import starmap
from operator import le, sub

from isochrone.control.figures.frames import (
    COMPUTE,
    GATEWAY,
    NO_TIME,
    QUEUE,
    WORKER,
    GatewayFigures,
    ModelFigures,
    ModelKey,
    StageFigures,
)
from isochrone.gateway.figures.page import FiguresPage, ModelCounts, VersionCounts
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS


@dataclass(frozen=True, slots=True)
class Counted:
    """What one gateway counted since its last page."""

    gateway: GatewayFigures
    models: Mapping[ModelKey, ModelFigures]
    #: The page had all models that the gateway has.
    is_whole: bool = True


class GatewayCounts:
    """The last page of one gateway."""

    def __init__(self) -> None:
        self._incarnation = ""
        self._models: dict[str, ModelCounts] = {}
        self._versions: dict[ModelKey, VersionCounts] = {}
        #: The last page had all models that the gateway has.
        self._was_whole = False

    def take(self, name: str, page: FiguresPage, watched_ms: float) -> Counted:
        """What was counted since the last page. ``watched_ms``: the time since the last page of this gateway; without
        one, how long this fleet has been watched.

        Of another process than that of the last page, all if it started meanwhile; of one that was there before,
        nothing.
        """
        if page.incarnation != self._incarnation:
            self._models, self._versions = {}, {}
            self._was_whole = page.uptime_ms <= watched_ms
        figures: dict[ModelKey, ModelFigures] = {}
        requests = retries = hedges = own_ns = own_count = 0
        models: dict[str, ModelCounts] = {}
        versions: dict[ModelKey, VersionCounts] = {}
        for model in page.models:
            models[model.model] = model
            counts = self._model(model)
            requests += counts.requests
            retries += counts.retries
            hedges += counts.hedges
            if counts.excused:
                # With its rejections, whatever their version was.
                figures[model.model, ""] = ModelFigures(model.model, excused=counts.excused)
            for version in model.versions:
                key = model.model, version.version
                versions[key] = version
                made, own = self._version(key, version)
                own_ns, own_count = own_ns + own.sum_ns, own_count + own.count
                if made is not None:
                    figures[key] = figures[key].merged(made) if key in figures else made
        self._incarnation = page.incarnation
        self._models, self._versions, self._was_whole = models, versions, not page.left_out
        own = StageFigures(own_ns, own_count)
        gateway = GatewayFigures(name, True, requests, retries, hedges, page.in_flight, own)
        return Counted(gateway, figures, self._was_whole)

    def _model(self, counts: ModelCounts) -> ModelCounts:
        """The difference of the counts of a whole model."""
        known = self._models.get(counts.model)
        if known is None:
            return counts if self._was_whole else ModelCounts(counts.model)
        after = counts.requests, counts.retries, counts.hedges, counts.excused
        before = known.requests, known.retries, known.hedges, known.excused
        if not all(map(le, before, after)):
            return counts
        return ModelCounts(counts.model, *map(sub, after, before))

    def _version(self, key: ModelKey, counts: VersionCounts) -> tuple[ModelFigures | None, StageFigures]:
        """(figures, None: there is nothing to count; the gateway's own share)."""
        known = self._versions.get(key)
        if known is None and not self._was_whole:
            return None, NO_TIME
        if known is None or not _is_continued(known, counts):
            known = VersionCounts(counts.version, (0, 0, 0, 0, 0))
        outcomes = tuple(starmap(sub, zip(counts.outcomes, known.outcomes, strict=True)))
        if not any(outcomes):
            return None, NO_TIME
        durations = {
            bucket: count
            for bucket, total in counts.durations.items()
            if (count := total - known.durations.get(bucket, 0)) and 0 <= bucket <= len(BUCKET_BOUNDS_NS)
        }
        sum_ns = counts.sum_ns - known.sum_ns
        own = StageFigures(counts.own_ns - known.own_ns, counts.own_count - known.own_count)
        stages: dict[str, StageFigures] = {}
        if own.count:
            stages[GATEWAY] = own
            if own.count == outcomes[0]:
                # No streams among them: both sums are of the same requests.
                stages[WORKER] = StageFigures(max(0, sum_ns - own.sum_ns), own.count)
        if counts.queue_count:
            stages[QUEUE] = StageFigures(counts.queue_ns, counts.queue_count)
        if counts.compute_count:
            stages[COMPUTE] = StageFigures(counts.compute_ns, counts.compute_count)
        answered, rejected, late, failed, cancelled = outcomes
        made = ModelFigures(
            *key, answered, rejected, late, failed, cancelled, durations=durations, sum_ns=sum_ns, stages=stages
        )
        return made, own


def _is_continued(known: VersionCounts, counts: VersionCounts) -> bool:
    """Whether all totals have grown or stayed."""
    return (
        all(map(le, known.outcomes, counts.outcomes))
        and known.sum_ns <= counts.sum_ns
        and known.own_ns <= counts.own_ns
        and known.own_count <= counts.own_count
        and all(count <= counts.durations.get(bucket, 0) for bucket, count in known.durations.items())
    )


def added_models(parts: Iterable[Mapping[ModelKey, ModelFigures]]) -> dict[ModelKey, ModelFigures]:
    """The same models at several gateways."""
    total: dict[ModelKey, ModelFigures] = {}
    for part in parts:
        for key, each in part.items():
            total[key] = total[key].merged(each) if key in total else each
    return total
