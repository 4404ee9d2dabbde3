"""The choice of the planner over emulated links, beside every other option: a cell is a model and a link."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.links.network import EmulatedNetwork
from bench.links.settings import LinkSettings
from bench.partitioning.comparing import Comparison, compare
from bench.partitioning.models import MODELS, read, rows_of
from bench.partitioning.served import ServedOption, check_outputs, served_options
from bench.partitioning.tiers import Tier
from isochrone.models.divisions import Link
from isochrone.optimize.partitioning.choices import choose
from isochrone.optimize.partitioning.encodings import Encoding
from isochrone.optimize.partitioning.link_measuring import measured_link
from isochrone.optimize.partitioning.planning import Plan, Planner
from isochrone.optimize.partitioning.tiers import TierWorker

CLOSE = 1.05
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Cell:
    """``round_trip`` in milliseconds, ``megabits`` per second."""

    round_trip: float
    megabits: float

    @property
    def settings(self) -> LinkSettings:
        return LinkSettings(self.round_trip / 2e3, self.megabits * 1e6)

    def __str__(self) -> str:
        return f"{self.round_trip:g} ms, {self.megabits:g} Mbit/s"


def cells_of(text: str) -> list[Cell]:
    """From ``1x1000,50x1``: milliseconds and Mbit/s."""
    found = []
    for part in text.split(","):
        round_trip, _, megabits = part.strip().partition("x")
        found.append(Cell(float(round_trip), float(megabits)))
    return found


@dataclass(frozen=True, slots=True)
class CellResult:
    model: str
    cell: Cell
    link: Link
    comparison: Comparison
    #: Seconds, by option.
    predicted: dict[str, float]

    @property
    def is_close(self) -> bool:
        return self.comparison.ratio <= CLOSE

    def line(self) -> str:
        seen = self.comparison
        median = seen.median(seen.chosen)
        left = f", {len(seen.left_out)} left out after one request or none" if seen.left_out else ""
        best = "" if seen.best == seen.chosen else f"; best: {seen.best} {seen.median(seen.best) * 1e3:.1f} ms"
        return (
            f"{self.model}, {self.cell}: {seen.chosen} {median * 1e3:.1f} ms (predicted "
            f"{self.predicted[seen.chosen] * 1e3:.1f}){best}; ratio {seen.ratio:.3f}"
            f"{'' if self.is_close else ' NOT WITHIN 5 %'}{left}"
        )

    def row(self) -> str:
        seen = self.comparison
        return (
            f"| {self.model} | {self.cell.round_trip:g} | {self.cell.megabits:g} | {seen.chosen} | "
            f"{seen.median(seen.chosen) * 1e3:.1f} | {self.predicted[seen.chosen] * 1e3:.1f} | {seen.best} | "
            f"{seen.median(seen.best) * 1e3:.1f} | {seen.ratio:.3f} |"
        )

    def record(self) -> dict[str, Any]:
        seen = self.comparison
        return {
            "model": self.model,
            "round_trip_ms": self.cell.round_trip,
            "mbit_per_second": self.cell.megabits,
            "measured_round_trip_ms": self.link.round_trip * 1e3,
            "chosen": seen.chosen,
            "best": seen.best,
            "ratio": seen.ratio,
            "options": [
                {
                    "name": name,
                    "predicted_ms": self.predicted[name] * 1e3,
                    "median_ms": statistics.median(samples) * 1e3 if samples else None,
                    "requests": len(samples),
                    "only_request_ms": _milliseconds(seen.left_out.get(name)),
                }
                for name, samples in seen.samples.items()
            ],
        }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


class Cells:
    """Measures the cells of one pair of workers."""

    def __init__(
        self, network: EmulatedNetwork, edge: Tier, core: Tier, directory: Path, seconds: float, cuts: int, say: Say
    ) -> None:
        self._network, self._edge, self._core = network, edge, core
        self._directory, self._seconds, self._cuts, self._say = directory, seconds, cuts, say

    def of_model(self, name: str, cells: Sequence[Cell]) -> list[CellResult]:
        model = read(MODELS[name]())
        inputs = rows_of(model, 1)
        planner = Planner(model, inputs, list(inputs), lambda line: None)
        with (
            TierWorker("edge", self._edge.near) as edge,
            TierWorker("core", self._core.near, self._core.far) as core,
        ):
            self._network.set(cells[0].settings)
            began = time.monotonic()
            plan = planner.plan(edge, core, [Encoding.PLAIN], self._cuts)
            self._say(f"{name}: {len(plan.options)} options measured in {time.monotonic() - began:.0f} s")
            for each in plan.options:
                option = each.option
                self._say(
                    f"  {option.name}: edge {option.edge_seconds * 1e3:.2f} ms, core {option.core_seconds * 1e3:.2f} "
                    f"ms, {option.sent_bytes:,} bytes"
                )
            self._network.set(LinkSettings())
            with served_options(self._directory, name, model, plan, self._edge, self._core, inputs) as options:
                error = check_outputs(options, model, inputs)
                self._say(f"{name}: outputs of all options are equal; largest relative difference {error:.1e}")
                results = []
                for cell in cells:
                    self._network.set(cell.settings)
                    time.sleep(0.1)
                    most = max(each.option.sent_bytes for each in plan.options)
                    link = measured_link(edge, core, lambda line: None, most)
                    result = self._cell(name, cell, link, plan, options)
                    self._say(result.line())
                    results.append(result)
        return results

    def _cell(self, name: str, cell: Cell, link: Link, plan: Plan, options: Sequence[ServedOption]) -> CellResult:
        choice = choose([each.option for each in plan.options], link)
        predicted = {each.option.name: each.option.seconds(link) for each in plan.options}
        requests = {each.name: each.seconds for each in options}
        comparison = compare(requests, predicted, choice.option.name, self._seconds)
        return CellResult(name, cell, link, comparison, predicted)
