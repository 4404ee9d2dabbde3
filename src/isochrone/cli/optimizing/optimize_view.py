"""What ``isochrone optimize`` shows: the Pareto front while it searches, and a table of the result."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from isochrone.cli.console import table
from isochrone.optimize.optimization import Result
from isochrone.optimize.searching.candidate import Goal, Outcome
from isochrone.optimize.searching.pareto import front

_COLUMNS = ("candidate", "runtime", "median ms", "p99 ms", "speed-up", "drop", "accuracy", "error", "MB", "")
_RIGHT = ("median ms", "p99 ms", "speed-up", "drop", "accuracy", "error", "MB")


class LiveFront:
    """On a terminal the front is drawn anew after each trial; elsewhere a trial is a line. Both on standard error."""

    def __init__(self, goal: Goal) -> None:
        self._goal = goal
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveFront:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, outcomes: tuple[Outcome, ...]) -> None:
        if self._console.is_terminal:
            self._live.update(front_picture(outcomes, self._goal), refresh=True)
        else:
            print(_line(outcomes[-1]), file=self._console.file, flush=True)


def front_picture(outcomes: tuple[Outcome, ...], goal: Goal) -> RenderableType:
    shown = _table("Pareto front", front(outcomes), outcomes[0], goal)
    return Group(shown, f"{len(outcomes)} tried; last: {_line(outcomes[-1])}")


def result_picture(result: Result) -> RenderableType:
    report = result.report
    measured = [outcome for outcome in report.outcomes if outcome.figures is not None]
    shown = _table(f"{report.model}: drop is the {report.measure}", measured, report.float_model, report.goal)
    failed = [f"{outcome.candidate}: {outcome.reason}" for outcome in report.outcomes if outcome.figures is None]
    refused = [f"{name}: {why}" for name, why in report.not_tried.items()]
    parts: list[RenderableType] = [shown]
    for title, lines in (("Failed", failed), ("Not tried", refused)):
        if lines:
            parts += ["", f"{title}:", *(f"  {line}" for line in lines)]
    return Group(*parts, "")


def _table(title: str, outcomes: list[Outcome], base: Outcome, goal: Goal) -> Table:
    made = table(title, *_COLUMNS, right=_RIGHT)
    on_front = {outcome.candidate for outcome in front(outcomes)}
    for outcome in outcomes:
        figures = outcome.figures
        if figures is None or base.figures is None:
            continue
        marks = ["front"] if outcome.candidate in on_front else []
        marks += ["meets the budget"] if goal.is_met(figures) else []
        made.add_row(
            outcome.candidate.graph,
            str(outcome.candidate.settings),
            f"{figures.milliseconds:.4g}",
            f"{figures.p99:.4g}",
            f"{base.figures.milliseconds / figures.milliseconds:.2f}",
            f"{figures.drop:.3%}",
            "" if figures.accuracy is None else f"{figures.accuracy:.2%}",
            f"{figures.relative_error:.1e}",
            f"{figures.size / 1e6:.3f}",
            ", ".join(marks),
        )
    return made


def _line(outcome: Outcome) -> str:
    figures = outcome.figures
    if figures is None:
        return f"{outcome.candidate}: skipped: {outcome.reason}"
    return f"{outcome.candidate}: {figures.milliseconds:.4g} ms, drop {figures.drop:.3%}, {figures.size / 1e6:.3f} MB"
