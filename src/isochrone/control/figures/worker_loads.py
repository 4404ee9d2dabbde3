"""The workers as all gateways together know them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isochrone.control.figures.frames import WorkerFigures
from isochrone.gateway.figures.page import WorkerLoad


def worker_figures(pages: Iterable[Iterable[WorkerLoad]], names: Mapping[str, str]) -> dict[str, WorkerFigures]:
    """By name. ``pages``: the rows of each gateway; ``names``: by address, of the registered workers."""
    rows: dict[str, list[WorkerLoad]] = {}
    for page in pages:
        for row in page:
            rows.setdefault(row.address, []).append(row)
    made = (_worker(names.get(address, address), each) for address, each in sorted(rows.items()))
    return {each.name: each for each in made}


def _worker(name: str, rows: list[WorkerLoad]) -> WorkerFigures:
    reported = [row for row in rows if row.age_ms >= 0]
    newest = min(reported, key=lambda row: row.age_ms, default=None)
    own = sum(row.own_in_flight for row in rows)
    round_trips = [row.round_trip_us for row in rows if row.round_trip_us >= 0]
    return WorkerFigures(
        name,
        rows[0].address,
        rows[0].tier,
        rows[0].device,
        own if newest is None else max(own, newest.in_flight),
        0 if newest is None else newest.queued,
        0 if newest is None else newest.wait_ns,
        all(row.is_healthy for row in rows),
        any(row.is_ejected for row in rows),
        any(row.is_draining for row in rows),
        all(row.is_standby for row in rows),
        min(round_trips) / 1e6 if round_trips else None,
    )
