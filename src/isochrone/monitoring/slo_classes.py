"""Models by the bucket of the histogram that holds answers within their SLO. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from isochrone.monitoring.rules import one_of
from isochrone.monitoring.thresholds import Thresholds
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS


def slo_classes(limits: Thresholds, share: float = 1.0) -> Iterator[tuple[str, str]]:
    """(matcher of models, bound of the bucket that holds times up to a share of their SLO): models that share a bucket
    are one class, and every model is in one."""
    models: dict[str, list[str]] = {}
    for model, seconds in limits.slo_seconds.items():
        models.setdefault(bucket_of(seconds * share), []).append(model)
    for bound, each in sorted(models.items()):
        yield f", model=~{one_of(each)}", bound
    yield other_models(limits), bucket_of(limits.default_slo_seconds * share)


def other_models(limits: Thresholds) -> str:
    """The matcher of models that the file does not name."""
    return f", model!~{one_of(limits.slo_seconds)}" if limits.slo_seconds else ""


def bucket_of(seconds: float) -> str:
    """The ``le`` of the first bucket that holds every answer within an SLO. An SLO between two bounds counts as the
    upper one: no answer in time is called late."""
    nanoseconds = round(seconds * 1e9)
    return next((str(bound / 1e9) for bound in BUCKET_BOUNDS_NS if bound >= nanoseconds), "+Inf")
