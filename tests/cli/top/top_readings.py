"""Readings for tests without a page: each figure is one series."""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.cli.top.readings import Reading, Series


def a_reading(
    sums: Mapping[str, float],
    buckets: Mapping[float, float] | None = None,
    models: Mapping[str, Reading] | None = None,
) -> Reading:
    counters: dict[str, dict[Series, float]] = {name: {(name,): value} for name, value in sums.items()}
    histograms: dict[Series, Mapping[float, float]] = {("durations",): buckets} if buckets else {}
    return Reading(sums, buckets or {}, models or {}, counters=counters, histograms=histograms)
