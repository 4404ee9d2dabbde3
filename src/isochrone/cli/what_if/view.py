"""The display of an answer as tables: each figure of today beside that of the changed fleet. Pure."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from isochrone.cli.console import table
from isochrone.control.what_if.answers import BREAKS, HOLDS, WORSE, ModelOutcome, WhatIfAnswer, WorkerAnswer

_STYLES = {HOLDS: "green", WORSE: "yellow", BREAKS: "red"}
_TITLES = {HOLDS: "the fleet holds", WORSE: "the fleet gets worse", BREAKS: "the fleet breaks"}
#: Workers that are shown: those with the highest utilisation, and those that come or go.
_WORKERS = 12


def answer_picture(answer: WhatIfAnswer) -> RenderableType:
    style = _STYLES.get(answer.verdict, "")
    parts: list[RenderableType] = [
        Text(f"{' '.join(answer.questions)}: {_TITLES.get(answer.verdict, answer.verdict)}", f"bold {style}"),
        *(Text(f"  {sentence}") for sentence in answer.sentences),
        Text(),
        _models(answer),
        Text(),
        _workers(answer),
    ]
    if answer.trust:
        parts += [Text(), Text("How near the simulation of today is to what was measured", "bold")]
        parts += [Text(f"  {sentence}") for sentence in answer.trust]
    notes = [f"not simulated: {name}: {why}" for name, why in answer.left_out.items()]
    notes += [f"assumed: {each}" for each in answer.assumptions]
    notes.append(
        f"{answer.simulated_seconds:g} simulated seconds, {answer.requests:,} requests, seed {answer.seed}; "
        f"load of the last {answer.measured_seconds} s"
    )
    return Group(*parts, Text(), *(Text(note, "dim") for note in notes))


def _models(answer: WhatIfAnswer) -> Table:
    columns = ("requests/s", "p50 ms", "p99 ms", "missed", "rejected", "failed", "busy", "workers")
    shown = table("models", "model", "", *columns, right=columns)
    for model in answer.models:
        measured = model.measured
        if measured is not None:
            latencies = (_ms(measured.p50_ms), _ms(measured.p99_ms))
            shares = map(_share, (measured.missed, measured.rejected, measured.failed))
            shown.add_row(model.name, "measured", "", *latencies, *shares, "", "", style="dim")
        shown.add_row(model.name if measured is None else "", "today", *_figures(model.today))
        shown.add_row("", "then", *_figures(model.then), style="bold")
    return shown


def _figures(outcome: ModelOutcome) -> tuple[str, ...]:
    answered = outcome.failed < 1
    return (
        f"{outcome.rate:,.3g}" if outcome.rate < 100 else f"{outcome.rate:,.0f}",
        _ms(outcome.p50_ms) if answered else "–",
        _ms(outcome.p99_ms) if answered else "–",
        _share(outcome.missed),
        _share(outcome.rejected),
        _share(outcome.failed),
        f"{outcome.utilisation:.0%}",
        str(outcome.workers),
    )


def _workers(answer: WhatIfAnswer) -> Table:
    def order(worker: WorkerAnswer) -> tuple[bool, float]:
        both = [each.utilisation for each in (worker.today, worker.then) if each is not None]
        return worker.today is not None and worker.then is not None, -max(both, default=0.0)

    columns = ("busy today", "then", "p99 ms today", "then ")
    shown = table("workers, the busiest first", "worker", "pool", *columns, right=columns)
    every = [worker for worker in answer.workers if worker.today is not None or worker.then is not None]
    for worker in sorted(every, key=order)[:_WORKERS]:
        today, then = worker.today, worker.then
        shown.add_row(
            worker.name,
            worker.pool,
            f"{today.utilisation:.0%}" if today is not None else "–",
            f"{then.utilisation:.0%}" if then is not None else "lost",
            _ms(today.p99_ms) if today is not None else "–",
            _ms(then.p99_ms) if then is not None else "–",
        )
    if len(every) > _WORKERS:
        shown.add_row(f"and {len(every) - _WORKERS} more")
    return shown


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _share(value: float) -> str:
    return "0" if not value else f"{value:.2%}"
