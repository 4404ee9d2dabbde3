"""Metrics that models define themselves (Triton: custom metrics), and their place on the metrics page.

Models change them from any thread. A metric is on the page as long as its model keeps it. Two families of one name are
one family, if they are of one kind.
"""

from __future__ import annotations

import re
import threading
import weakref
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric, UnknownMetricFamily

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: Names of the server itself.
_OWN = ("nv_", "isochrone_", "process_")


class BadMetric(ValueError):
    """A metric that cannot be: the message says why."""


@dataclass(frozen=True, slots=True)
class SeriesSnapshot:
    """One set of labels. ``counts``: of a histogram's buckets, not cumulative, the last without an upper bound."""

    labels: tuple[tuple[str, str], ...]
    value: float
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FamilySnapshot:
    name: str
    description: str
    kind: str
    series: tuple[SeriesSnapshot, ...]


class Series:
    """One metric of a family."""

    def __init__(self, kind: str, labels: tuple[tuple[str, str], ...], bounds: tuple[float, ...]) -> None:
        self._kind = kind
        self._labels = labels
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._value = 0.0
        self._lock = threading.Lock()

    def increment(self, value: float) -> None:
        if self._kind == HISTOGRAM or (self._kind == COUNTER and value < 0):
            raise BadMetric(f"a {self._kind} cannot be incremented by {value}")
        with self._lock:
            self._value += value

    def set(self, value: float) -> None:
        if self._kind != GAUGE:
            raise BadMetric(f"a {self._kind} cannot be set")
        with self._lock:
            self._value = float(value)

    def observe(self, value: float) -> None:
        if self._kind != HISTOGRAM:
            raise BadMetric(f"a {self._kind} cannot observe values")
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._value += value

    def value(self) -> float:
        if self._kind == HISTOGRAM:
            raise BadMetric("a histogram has no single value")
        return self._value

    def snapshot(self) -> SeriesSnapshot:
        with self._lock:
            return SeriesSnapshot(self._labels, self._value, self._bounds, tuple(self._counts))


class _Family:
    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name, self.description, self.kind = name, description, kind
        self.series: weakref.WeakSet[Series] = weakref.WeakSet()


class ModelMetrics:
    """The families of one worker's models."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._lock = threading.Lock()

    def series(
        self, name: str, description: str, kind: str, labels: Mapping[str, str], bounds: Sequence[float] = ()
    ) -> Series:
        """A metric. Raises ``BadMetric``."""
        if not _NAME.fullmatch(name) or name.startswith(_OWN):
            raise BadMetric(f"metric '{name}': expected a Prometheus name that does not begin with {', '.join(_OWN)}")
        if kind not in (COUNTER, GAUGE, HISTOGRAM):
            raise BadMetric(f"metric '{name}': expected the kind COUNTER, GAUGE or HISTOGRAM, given {kind!r}")
        for label in labels:
            if not _LABEL.fullmatch(label):
                raise BadMetric(f"metric '{name}': expected a Prometheus label, given '{label}'")
        if (kind == HISTOGRAM) != bool(bounds) or list(bounds) != sorted(set(bounds)):
            raise BadMetric(f"metric '{name}': expected ascending buckets for a histogram and none for others")
        made = Series(kind, tuple(sorted((key, str(value)) for key, value in labels.items())), tuple(bounds))
        with self._lock:
            family = self._families.get(name)
            if family is None or not family.series:
                family = self._families[name] = _Family(name, description, kind)
            elif family.kind != kind:
                raise BadMetric(f"metric '{name}': expected a {family.kind}, as another model has it, given a {kind}")
            family.series.add(made)
        return made

    def snapshot(self) -> tuple[FamilySnapshot, ...]:
        with self._lock:
            families = [(family, list(family.series)) for family in self._families.values()]
        return tuple(
            FamilySnapshot(family.name, family.description, family.kind, tuple(each.snapshot() for each in series))
            for family, series in families
            if series
        )


def model_metrics(families: Sequence[FamilySnapshot]) -> Iterator[Metric]:
    for family in families:
        keys = sorted({key for each in family.series for key, _ in each.labels})
        rows = {tuple(dict(each.labels).get(key, "") for key in keys): each for each in family.series}
        if family.kind == HISTOGRAM:
            histogram = HistogramMetricFamily(family.name, family.description, labels=keys)
            for labels, each in rows.items():
                bounds = [*map(str, each.bounds), "+Inf"]
                buckets = list(zip(bounds, accumulate(each.counts), strict=True))
                histogram.add_metric(labels, buckets=buckets, sum_value=each.value)
            yield histogram
            continue
        # A counter's name need not end in _total here, as in Triton; prometheus_client would add that.
        made = (GaugeMetricFamily if family.kind == GAUGE else UnknownMetricFamily)(
            family.name, family.description, labels=keys
        )
        for labels, each in rows.items():
            made.add_metric(labels, each.value)
        yield made


def counters(families: Sequence[FamilySnapshot]) -> list[str]:
    return [family.name for family in families if family.kind == COUNTER]
