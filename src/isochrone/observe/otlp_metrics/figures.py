"""The families of a metrics page as figures that OTLP can carry, under the same names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from prometheus_client.core import Metric

SUM: Final = "sum"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
#: Triton's counters have names without _total, and so no type on a page in the OpenMetrics format.
_TRITON: Final = "nv_"


@dataclass(frozen=True, slots=True)
class Buckets:
    """One histogram: counts of the buckets between ``bounds``, the last without an upper bound."""

    labels: Mapping[str, str]
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(slots=True)
class Figure:
    """One metric with all its series."""

    name: str
    description: str
    kind: str
    #: Of a sum or a gauge: labels and value.
    values: list[tuple[Mapping[str, str], float]] = field(default_factory=list)
    histograms: list[Buckets] = field(default_factory=list)


def figures_of(families: Iterable[Metric]) -> list[Figure]:
    """Families of one name, as pages in pieces have them, are one figure."""
    found: dict[str, Figure] = {}
    for family in families:
        if family.type == "histogram":
            figure = found.setdefault(family.name, Figure(family.name, family.documentation, HISTOGRAM))
            figure.histograms += _histograms(family)
            continue
        is_sum = family.type == "counter" or (family.type == "unknown" and family.name.startswith(_TRITON))
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            kind = SUM if is_sum else GAUGE
            figure = found.setdefault(sample.name, Figure(sample.name, family.documentation, kind))
            figure.values.append((sample.labels, float(sample.value)))
    return list(found.values())


def _histograms(family: Metric) -> list[Buckets]:
    cumulative: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        key = tuple(labels.items())
        if sample.name.endswith("_bucket"):
            cumulative.setdefault(key, []).append((float(sample.labels["le"]), float(sample.value)))
        elif sample.name.endswith("_sum"):
            sums[key] = float(sample.value)
    found = []
    for key, buckets in cumulative.items():
        counts = [0.0, *(count for _, count in buckets)]
        found.append(
            Buckets(
                dict(key),
                tuple(bound for bound, _ in buckets[:-1]),
                tuple(int(after - before) for before, after in pairwise(counts)),
                sums.get(key, 0.0),
            )
        )
    return found
