"""Where the time of a cell's requests went inside the worker, by its own statistics, those of Triton."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping

STAGES = ("queue", "compute_input", "compute_infer", "compute_output")

#: Stage → how many requests, and their nanoseconds, since the model was loaded.
Totals = Mapping[str, tuple[int, int]]


def read_totals(http_url: str, model: str) -> dict[str, tuple[int, int]]:
    """Of all versions together. Statistics are of one process: with several, one of them answers."""
    with urllib.request.urlopen(f"{http_url}/v2/models/{model}/stats", timeout=10) as answer:
        versions = json.load(answer)["model_stats"]
    stages = [version["inference_stats"] for version in versions]
    return {name: tuple(sum(int(each[name][key]) for each in stages) for key in ("count", "ns")) for name in STAGES}


def means_us(before: Totals, after: Totals) -> dict[str, float]:
    """Microseconds of a request in each stage between two readings; without stages that no request went through."""
    found = {}
    for name in STAGES:
        requests, nanoseconds = (later - earlier for earlier, later in zip(before[name], after[name], strict=True))
        if requests > 0:
            found[name] = nanoseconds / requests / 1e3
    return found
