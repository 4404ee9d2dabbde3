"""Figures of the GPU benches: percentiles, spread over rounds, ratios, tables, and files that grow as a run goes on."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.build import describe_build
from bench.worker.machine import RESULTS, describe

#: Largest difference of an answer from its reference, as a share of the reference's largest value: half precision in
#: kernels that change with the batch size. Contents of different requests differ by ten times as much.
TOLERANCE = 0.02


def percentiles_us(latencies_ns: Sequence[int] | np.ndarray) -> dict[str, float]:
    """p50, p99 and p99.9 in microseconds; empty without latencies."""
    values = np.asarray(latencies_ns)
    if not len(values):
        return {}
    found = np.percentile(values, (50, 99, 99.9)) / 1e3
    return dict(zip(("p50_us", "p99_us", "p999_us"), map(float, found), strict=True))


def spread(values: Iterable[float | None], form: Callable[[float], str] = "{:,.0f}".format) -> str:
    """The median, and the lowest and highest of several."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return "–"
    middle = form(statistics.median(known))
    return middle if len(known) == 1 else f"{middle} ({form(known[0])}–{form(known[-1])})"


def ratios(values: Sequence[float | None], bases: Sequence[float | None]) -> list[float]:
    """Round by round: a slow minute of the machine hits both sides."""
    return [value / base for value, base in zip(values, bases, strict=True) if value is not None and base]


def deviation(given: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, as a share of the largest expected value; infinite for other shapes or NaN."""
    if given.shape != expected.shape:
        return float("inf")
    found = float(np.max(np.abs(given.astype(np.float64) - expected)) / max(1e-12, float(np.max(np.abs(expected)))))
    return found if np.isfinite(found) else float("inf")


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as the docs have it; the first column to the left, the others to the right."""
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


class ResultsFile:
    """Written after every figure: a run that is ended from outside leaves what it has measured."""

    def __init__(self, name: str, directory: Path | None = None, **about: Any) -> None:
        self.path = (directory or RESULTS) / f"{name}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        date = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        facts = {"date": date, "machine": describe(), "build": describe_build(), **about}
        self._content: dict[str, Any] = {**facts, "figures": []}
        self._write()

    @property
    def figures(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._content["figures"]
        return found

    def shortfall(self, part: str, /, *, limited: bool, **which: Any) -> str:
        """What to say if there is no figure with these values: a run without one must not pass as success.

        ``limited``: ``--limit`` left figures of the part out. ``part`` may be a key of the figures, too.
        """
        if any(all(figure.get(key) == value for key, value in which.items()) for figure in self.figures):
            return ""
        return f"no figure of {part}" + (": --limit is too short" if limited else "")

    def add(self, **figure: Any) -> dict[str, Any]:
        self.figures.append(figure)
        self._write()
        return figure

    def note(self, **facts: Any) -> None:
        self._content |= facts
        self._write()

    def _write(self) -> None:
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self._content, indent=1, default=str))
        partial.replace(self.path)
