"""Figures as tables: percentiles per policy, and per phase and kind of request if there are several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table

_COLUMNS = ("p50", "p90", "p99", "p99.9")


def tables(figures: dict[str, Any]) -> Iterable[Table]:
    """The table of all requests, then those of the phases and kinds."""
    policies = figures["policies"]
    title = f"{figures['scenario'] or 'scenario'}: {figures['workers']} workers, {figures['gateways']} gateways"
    title += f", capacity {figures['capacity_per_s']:,.0f}/s, seed {figures['seed']}"
    if figures["seeds"] > 1:
        title += f" to {figures['seed'] + figures['seeds'] - 1}"
    yield _table(title, "policy", [(policy["policy"], policy["total"]) for policy in policies])
    if "median_of_runs" in policies[0]:
        rows = [(policy["policy"], policy["median_of_runs"]) for policy in policies]
        yield _table(f"median of {figures['seeds']} runs", "policy", rows)
    for part, name in (("phases", "phase"), ("kinds", "kind")):
        if part in policies[0]:
            rows = [
                (f"{row[name]}  {policy['policy']}", row)
                for group in zip(*(policy[part] for policy in policies), strict=True)
                for policy, row in zip(policies, group, strict=True)
            ]
            yield _table(f"by {name}", f"{name}, policy", rows)


def _table(title: str, first: str, rows: list[tuple[str, dict[str, Any]]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    table.add_column(first, no_wrap=True)
    for column in (*(f"{name} ms" for name in _COLUMNS), "missed", "rejected", "failed", "goodput/s"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, row in rows:
        table.add_row(
            name,
            *(f"{row[f'{column}_ms']:,.2f}" for column in _COLUMNS),
            *(_share(row[column]) for column in ("missed_share", "rejected_share", "failed_share")),
            f"{row['goodput_per_s']:,.0f}",
        )
    return table


def _share(value: float) -> str:
    return "0" if not value else f"{value:.2%}" if value >= 0.0001 else f"{value:.1e}"
