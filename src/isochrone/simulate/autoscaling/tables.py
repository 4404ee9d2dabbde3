"""Comparisons as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from isochrone.simulate.autoscaling.comparison import Comparison, Spread


def table(comparisons: Sequence[Comparison], seeds: int) -> Table:
    """One row per course and algorithm; figures are means over the seeds, with the lowest and highest."""
    title = "violations: share of requests refused or late"
    if seeds > 1:
        title += f"; means of {seeds} seeds, lowest to highest in brackets"
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    shown.add_column("course", no_wrap=True)
    shown.add_column("algorithm", no_wrap=True)
    for column in ("violations", "worker-hours", "direction changes"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("best setting", no_wrap=True)
    for comparison in comparisons:
        load = _cell(comparison.load_direction_changes, seeds, "{:.0f}")
        shown.add_row(comparison.course, "the load itself", "", "", load, "", style="dim")
        for row in comparison.rows:
            shown.add_row(
                comparison.course,
                row.algorithm,
                _cell(row.violations, seeds, "{:.4%}"),
                _cell(row.worker_hours, seeds, "{:,.1f}"),
                _cell(row.direction_changes, seeds, "{:.0f}"),
                row.setting,
            )
    return shown


def _cell(figure: Spread, seeds: int, form: str) -> str:
    text = form.format(figure.mean)
    if seeds > 1:
        text += f" [{form.format(figure.lowest)}–{form.format(figure.highest)}]"
    return text
