"""The demo's tables: figures in, rich tables out. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from closed_loop import Tally
from rich.table import Table

from isochrone.cli.requests.waterfall import percentile


@dataclass(frozen=True)
class Outcome:
    """The results of one policy."""

    policy: str
    tally: Tally
    #: Share of the requests that the slow worker answered.
    to_the_slow: float


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def models(tallies: list[Tally], connections: Mapping[str, int], seconds: float) -> Table:
    """Throughput and percentiles per model."""
    title = f"all sample models at once for {seconds:.1f} s, closed loop"
    table = _table(title, "model", "connections", "requests/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms")
    total = 0.0
    for tally in tallies:
        ordered = sorted(tally.milliseconds)
        rate = len(ordered) / seconds
        total += rate
        shares = [f"{percentile(ordered, share):.2f}" for share in (0.5, 0.9, 0.99, 0.999)]
        table.add_row(tally.model, str(connections[tally.model]), f"{rate:,.0f}", *shares)
    table.add_row("all", str(sum(connections.values())), f"{total:,.0f}", style="bold")
    return table


def policies(outcomes: list[Outcome], title: str) -> Table:
    """The policies side by side."""
    table = _table(title, "policy", "requests", "p50 ms", "p90 ms", "p99 ms", "failed", "slow worker")
    for outcome in outcomes:
        ordered = sorted(outcome.tally.milliseconds)
        shares = [f"{percentile(ordered, share):.1f}" for share in (0.5, 0.9, 0.99)]
        failed = str(outcome.tally.failures)
        table.add_row(outcome.policy, f"{len(ordered):,}", *shares, failed, f"{outcome.to_the_slow:.0%}")
    return table
