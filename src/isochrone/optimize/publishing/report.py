"""The result of a search as JSON and as a page. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from isochrone.optimize.searching.candidate import Candidate, Figures, Goal, Outcome
from isochrone.optimize.searching.pareto import front


@dataclass(frozen=True, slots=True)
class Report:
    model: str
    file: str
    goal: Goal
    measure: str
    """What the limit on accuracy applies to."""
    machine: Mapping[str, Any]
    data: Mapping[str, int]
    outcomes: Sequence[Outcome]
    """The float model first."""
    not_tried: Mapping[str, str]
    ended: str
    chosen: Outcome | None
    """It meets the goal."""
    closest: Outcome | None
    """If none is chosen: the fastest whose accuracy is accepted."""
    in_time: Outcome | None
    """If none is chosen: of those within the budget, the one that loses least."""
    date: str = ""

    @property
    def float_model(self) -> Outcome:
        return self.outcomes[0]

    def speed_up(self, outcome: Outcome) -> float:
        """Of runs in turns, where there were any: other programs slow the machine at some times more than at others."""
        base = self.float_model.figures
        if base is None or outcome.figures is None:
            return math.nan
        return outcome.figures.speed_up or base.milliseconds / outcome.figures.milliseconds


def report_document(report: Report) -> dict[str, Any]:
    on_front = {outcome.candidate for outcome in front(report.outcomes)}
    return {
        "model": report.model,
        "file": report.file,
        "date": report.date,
        "budget_ms": report.goal.milliseconds,
        "max_accuracy_drop": report.goal.drop,
        "accuracy_drop_is": report.measure,
        "met": report.chosen is not None,
        "chosen": _entry(report, report.chosen),
        "closest": _entry(report, report.closest),
        "closest_in_time": _entry(report, report.in_time),
        "ended": report.ended,
        "machine": dict(report.machine),
        "data": dict(report.data),
        "candidates": [
            {**(_entry(report, outcome) or {}), "on_pareto_front": outcome.candidate in on_front}
            for outcome in report.outcomes
        ],
        "not_tried": dict(report.not_tried),
    }


def report_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False)


def _entry(report: Report, outcome: Outcome | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    entry = {**_candidate(outcome.candidate), "reason": outcome.reason}
    if outcome.figures is not None:
        entry |= {**_figures(outcome.figures), "speed_up": _number(report.speed_up(outcome))}
    return entry


def _candidate(candidate: Candidate) -> dict[str, Any]:
    settings = candidate.settings
    return {
        "transformations": list(candidate.transformations),
        "runtime": settings.runtime,
        "threads": settings.threads,
        "bf16": settings.bf16,
    }


def _figures(figures: Figures) -> dict[str, Any]:
    return {
        "median_ms": figures.milliseconds,
        "median_low_ms": figures.low,
        "median_high_ms": figures.high,
        "p99_ms": figures.p99,
        "relative_error": _number(figures.relative_error),
        "accuracy_drop": _number(figures.drop),
        "accuracy": figures.accuracy,
        "bytes": figures.size,
    }


def _number(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font-family:sans-serif;margin:2em}}table{{border-collapse:collapse}}
td,th{{padding:.3em .8em;border-bottom:1px solid #ccc;text-align:left}}td.n{{text-align:right}}
tr.front{{font-weight:bold}}</style></head><body>
<h1>{title}</h1><p>{verdict}</p><p>Budget {budget:.4g} ms for the median of one run. Limit {drop:.3%}: {measure}.
{ended}. {date}</p>
<table><tr><th>candidate</th><th>median ms</th><th>p99 ms</th><th>speed-up</th><th>drop</th><th>accuracy</th>
<th>relative error</th><th>MB</th><th></th></tr>{rows}</table>
<p>Bold: on the Pareto front of latency, relative error and size.</p>
<h2>Not tried</h2><ul>{not_tried}</ul><h2>Machine and data</h2><ul>{machine}</ul></body></html>
"""


def report_page(report: Report) -> str:
    """A page without scripts and without anything from elsewhere."""
    on_front = {outcome.candidate for outcome in front(report.outcomes)}
    facts = {**report.machine, **report.data}
    return _PAGE.format(
        title=escape(f"isochrone optimize: {report.model}"),
        verdict=escape(verdict(report)),
        budget=report.goal.milliseconds,
        drop=report.goal.drop,
        measure=escape(report.measure),
        ended=escape(report.ended.capitalize()),
        date=escape(report.date),
        rows="".join(_row(report, outcome, outcome.candidate in on_front) for outcome in report.outcomes),
        not_tried="".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in report.not_tried.items()),
        machine="".join(f"<li>{escape(name)}: {escape(str(value))}</li>" for name, value in facts.items()),
    )


def _row(report: Report, outcome: Outcome, is_on_front: bool) -> str:
    figures = outcome.figures
    cells = [""] * 7
    if figures is not None:
        cells = [
            f"{figures.milliseconds:.4g}",
            f"{figures.p99:.4g}",
            f"{report.speed_up(outcome):.2f}",
            f"{figures.drop:.3%}",
            "" if figures.accuracy is None else f"{figures.accuracy:.2%}",
            f"{figures.relative_error:.2e}",
            f"{figures.size / 1e6:.3f}",
        ]
    kind = ' class="front"' if is_on_front else ""
    numbers = "".join(f'<td class="n">{cell}</td>' for cell in cells)
    return f"<tr{kind}><td>{escape(str(outcome.candidate))}</td>{numbers}<td>{escape(outcome.reason)}</td></tr>"


def verdict(report: Report) -> str:
    """One or two sentences: what is chosen, or what came closest."""
    if report.chosen is not None and report.chosen.figures is not None:
        return f"The budget is met by {_shown(report, report.chosen)}."
    goal = report.goal
    limits = f"the budget of {goal.milliseconds:.4g} ms with a drop of at most {goal.drop:.3%}"
    if report.closest is not None and report.closest.figures is not None and goal.is_met(report.closest.figures):
        return (
            f"No candidate met {limits} in two measurements. Not confirmed: {_shown(report, report.closest)}. More"
            " --seconds leave time to measure it again."
        )
    text = f"No candidate met {limits}"
    if report.closest is not None:
        text += f". The closest is {_shown(report, report.closest)}"
    if report.in_time is not None and report.in_time != report.closest:
        text += f". Within the budget, but with too large a drop: {_shown(report, report.in_time)}"
    return text + "."


def _shown(report: Report, outcome: Outcome) -> str:
    figures = outcome.figures
    assert figures is not None
    return (
        f"{outcome.candidate}: {figures.milliseconds:.4g} ms ({report.speed_up(outcome):.2f} times as fast as the float"
        f" model), drop {figures.drop:.3%}, {figures.size / 1e6:.3f} MB"
    )
