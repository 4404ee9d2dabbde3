"""Parse a metrics page to sums by model: of Isochrone's gateways and workers, and of Triton. Pure.

Most lines of a page are skipped before they are parsed: a page has five histograms per model, of which one counts here.
A page of ten models takes 8 ms this way, and 124 ms in the parser of prometheus_client.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

_Key = TypeVar("_Key")
#: One series of a page: its metric and the values of its labels, without the bound of a bucket.
Series: TypeAlias = tuple[str, ...]

_GATEWAY = "isochrone_gateway_"
#: Samples that are summed over their labels, without ``_total``.
_SUMS = {
    f"{_GATEWAY}requests": "requests",
    f"{_GATEWAY}rejections": "rejected",
    f"{_GATEWAY}failures": "failures",
    f"{_GATEWAY}in_flight": "in_flight",
    "nv_inference_request_success": "requests",
    "nv_inference_request_failure": "failures",
    "nv_inference_pending_request_count": "in_flight",
    "process_cpu_seconds": "cpu",
    "process_resident_memory_bytes": "memory",
}
#: A worker's failures with this reason (Triton's) are rejections: the queue was full, or the deadline could not be met.
_FAILURES, _REJECTED = "nv_inference_request_failure", "REJECTED"
#: Callers gave these up, such as a gateway whose hedge was answered first: no failures.
_CANCELED = "CANCELED"
_BUCKETS = "isochrone_request_duration_seconds_bucket"
#: In the lines of the buckets that count: those of whole requests.
_WHOLE = 'stage="request"'
#: Those of a gateway, of requests that it answered. They count for the gateway, not for its models.
_GATEWAY_BUCKETS, _ANSWERED = f"{_GATEWAY}request_duration_seconds_bucket", 'outcome="answered"'
#: What a worker's page says of its versions: a label of this metric. A gateway's page has a gauge.
_SERVED, _COMMITTED = "nv_inference_request_success", f"{_GATEWAY}version"
#: What a gateway's page says of each worker, and its name in ``Reading.endpoints``.
_ENDPOINTS = {
    f"{_GATEWAY}worker_healthy": "healthy",
    f"{_GATEWAY}worker_ejected": "ejected",
    f"{_GATEWAY}worker_in_flight": "in_flight",
    f"{_GATEWAY}worker_round_trip_seconds": "round_trip",
}
_PARSED = (*_SUMS, *_ENDPOINTS, _COMMITTED)
#: Name, labels, value; a time may follow.
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{(.*)\})?\s*(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
#: The time to match a line grows with the square of its length.
_LONGEST_LINE = 8192
_ESCAPE = re.compile(r"\\(.)")
#: Gauges among the sums: they have no growth.
_LEVELS = ("in_flight", "memory")
#: Series that are remembered after they have left a page; beyond, none is.
_MOST_REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class Reading:
    """One page at one time, or its part on one model. Empty: there is no reading."""

    sums: Mapping[str, float] = field(default_factory=dict)
    #: Upper bound in seconds → requests up to it.
    buckets: Mapping[float, float] = field(default_factory=dict)
    models: Mapping[str, Reading] = field(default_factory=dict)
    #: By model.
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: On a gateway's page, by address of a worker: what it says of it.
    endpoints: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    is_gateway: bool = False
    #: The counters that ``sums`` has, by name and series: each grows by itself, and begins again by itself.
    counters: Mapping[str, Mapping[Series, float]] = field(default_factory=dict)
    #: The histograms that ``buckets`` has.
    histograms: Mapping[Series, Mapping[float, float]] = field(default_factory=dict)

    def remembering(self, before: Reading) -> Reading:
        """This reading with the series of an earlier one that have left the page, such as those of a version that was
        unloaded: they may come back with what they had counted."""
        models = {name: each.remembering(before.models.get(name, _NOTHING)) for name, each in self.models.items()}
        for name, each in before.models.items():
            if name not in models and (each.counters or each.histograms):
                # A reading of a model that is not there: no request is in flight.
                models[name] = Reading({"in_flight": 0.0}, counters=each.counters, histograms=each.histograms)
        counters = {
            name: {**before.counters.get(name, {}), **self.counters.get(name, {})}
            for name in (*before.counters, *(each for each in self.counters if each not in before.counters))
        }
        histograms = {**before.histograms, **self.histograms}
        if len(histograms) + sum(map(len, counters.values())) > _MOST_REMEMBERED:
            return self
        return replace(self, models=models, counters=counters, histograms=histograms)


_NOTHING = Reading()


def printable(text: str) -> str:
    """Without characters that could control the terminal: names come from other machines."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "�" for each in text)


def read_page(text: str) -> Reading:
    """Parse a page; raises ``ValueError`` if one of its lines cannot be read. Other texts give an empty reading."""
    made = _Reading()
    for line in filter(_counts, text.split("\n")):
        found = _LINE.fullmatch(line) if len(line) <= _LONGEST_LINE else None
        if found is None:
            raise ValueError(f"no line of a metrics page: {printable(line[:200])}")
        made.add(found[1], _labels(found[2] or ""), float(found[3]))
    return made.reading()


def _counts(line: str) -> bool:
    if line.startswith(_PARSED):
        return True
    return (line.startswith(_BUCKETS) and _WHOLE in line) or (line.startswith(_GATEWAY_BUCKETS) and _ANSWERED in line)


def _labels(text: str) -> dict[str, str]:
    labels, at = {}, 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None:
            raise ValueError(f"no labels of a metrics page: {printable(text[:200])}")
        value = found[2]
        labels[found[1]] = _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        at = found.end()
    return labels


def _bound(labels: Mapping[str, str]) -> float:
    """The upper bound of a bucket; ``ValueError`` if the line has none."""
    return float(labels.get("le", "none"))


def _series(metric: str, labels: Mapping[str, str]) -> Series:
    return (metric, *(f"{name}={value}" for name, value in sorted(labels.items()) if name != "le"))


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


class _Sums:
    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.buckets: dict[float, float] = {}
        self.counters: dict[str, dict[Series, float]] = {}
        self.histograms: dict[Series, dict[float, float]] = {}

    def add(self, name: str, series: Series, value: float) -> None:
        _add(self.sums, name, value)
        if name not in _LEVELS:
            _add(self.counters.setdefault(name, {}), series, value)

    def add_bucket(self, series: Series, bound: float, value: float) -> None:
        _add(self.buckets, bound, value)
        _add(self.histograms.setdefault(series, {}), bound, value)

    def reading(self) -> Reading:
        return Reading(self.sums, self.buckets, counters=self.counters, histograms=self.histograms)


class _Reading:
    """A reading under construction."""

    def __init__(self) -> None:
        self._whole = _Sums()
        self._models: dict[str, _Sums] = {}
        self._versions: dict[str, list[str]] = {}
        self._endpoints: dict[str, dict[str, float]] = {}
        self._is_gateway = False

    def add(self, metric: str, labels: Mapping[str, str], value: float) -> None:
        name = metric.removesuffix("_total")
        if not math.isfinite(value):
            return
        if name in _SUMS:
            self._is_gateway = self._is_gateway or name.startswith(_GATEWAY)
            reason = labels.get("reason") if name == _FAILURES else None
            if reason != _CANCELED:
                for place in self._places(labels):
                    place.add("rejected" if reason == _REJECTED else _SUMS[name], _series(name, labels), value)
            if name == _SERVED and "version" in labels:
                self._add_version(labels.get("model", ""), labels["version"])
        elif name == _BUCKETS and labels.get("stage") == "request":
            for place in self._places(labels):
                place.add_bucket(_series(name, labels), _bound(labels), value)
        elif name == _GATEWAY_BUCKETS and labels.get("outcome") == "answered":
            self._whole.add_bucket(_series(name, labels), _bound(labels), value)
        elif name == _COMMITTED:
            self._add_version(labels.get("model", ""), f"{value:.0f}")
        elif name in _ENDPOINTS:
            self._endpoints.setdefault(labels.get("worker", ""), {})[_ENDPOINTS[name]] = value

    def reading(self) -> Reading:
        return replace(
            self._whole.reading(),
            models={name: each.reading() for name, each in self._models.items()},
            versions={name: tuple(each) for name, each in self._versions.items()},
            endpoints=self._endpoints,
            is_gateway=self._is_gateway,
        )

    def _places(self, labels: Mapping[str, str]) -> list[_Sums]:
        model = labels.get("model")
        return [self._whole] if model is None else [self._whole, self._models.setdefault(model, _Sums())]

    def _add_version(self, model: str, version: str) -> None:
        known = self._versions.setdefault(model, [])
        if version not in known:
            known.append(version)


def _add(into: dict[_Key, float], key: _Key, value: float) -> None:
    into[key] = into.get(key, 0.0) + value
