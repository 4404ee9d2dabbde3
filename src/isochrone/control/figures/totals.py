"""Good and bad requests of one model, minute by minute, for a day in a few KB. Pure.

The record in the store has a cell per minute of the last hour, and one per five minutes before it: budgets survive the
controllers. Windows longer than an hour are therefore exact to five minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from isochrone.control.figures.frames import Frame, ModelFigures
from isochrone.control.state.records import SloTotalsRecord

#: Minutes that are kept, those kept one by one, and those of a cell before them.
DAY: Final = 24 * 60
_FINE: Final = 60
_CELL: Final = 5
#: Models with a record.
MOST_MODELS: Final = 256


class Totals(NamedTuple):
    """Requests that count for an objective."""

    good: int = 0
    bad: int = 0

    @property
    def requests(self) -> int:
        return self.good + self.bad

    def plus(self, other: Totals) -> Totals:
        return Totals(self.good + other.good, self.bad + other.bad)


def totals(figures: ModelFigures, limit_s: float) -> Totals:
    """Bad: answered late, deadline exceeded, failed, rejected by the fault of a server. Requests whose callers left,
    and rejections that are excused (quotas), are neither."""
    late = figures.late(round(limit_s * 1e9))
    rejected = max(0, figures.rejected - figures.excused)
    return Totals(figures.answered - late, late + figures.deadline_exceeded + figures.failed + rejected)


def totals_by_minute(frames: Iterable[Frame], model: str, limit_s: float) -> dict[int, Totals]:
    """By unix minute, those with requests. No frame is longer than a minute."""
    found: dict[int, Totals] = {}
    for frame in frames:
        here = totals(frame.model(model), limit_s)
        if here.requests:
            minute = frame.at // 60
            found[minute] = found.get(minute, Totals()).plus(here)
    return found


def with_minutes(record: SloTotalsRecord | None, minutes: Mapping[int, Totals]) -> SloTotalsRecord | None:
    """The record with further minutes; None: there is nothing to record.

    Minutes that the record has already are added to its last one.
    """
    if not minutes:
        return record
    newest = max(minutes) if record is None else max(record.minute, *minutes)
    since = min(minutes) if record is None else record.since
    cells: dict[int, Totals] = {}
    if record is not None:
        for age, good, bad in record.cells:
            _add(cells, record.minute - age, Totals(good, bad), newest)
    for minute, each in minutes.items():
        at = minute if record is None else max(minute, record.minute)
        _add(cells, at, each, newest)
    kept = tuple((newest - minute, *each) for minute, each in sorted(cells.items()) if newest - minute < DAY)
    return SloTotalsRecord(newest, since, kept)


def _add(cells: dict[int, Totals], minute: int, each: Totals, newest: int) -> None:
    if newest - minute >= _FINE:
        minute -= minute % _CELL
    cells[minute] = cells.get(minute, Totals()).plus(each)


def until(record: SloTotalsRecord, minute: int) -> SloTotalsRecord:
    """The record without cells later than a minute: a clock was set back, or that of another leader is ahead."""
    if record.minute <= minute:
        return record
    behind = record.minute - minute
    cells = tuple((age - behind, good, bad) for age, good, bad in record.cells if age >= behind)
    return SloTotalsRecord(minute, min(record.since, minute), cells)


def in_window(record: SloTotalsRecord | None, further: Mapping[int, Totals], now: int, minutes: int) -> Totals:
    """Of the last ``minutes`` up to the minute ``now``: what is recorded, and later minutes that are not yet. Of a
    record that is ahead of now, this controller's own minute counts."""
    found = Totals()
    if record is not None:
        record = record if record.minute <= now else until(record, now - 1)
        for age, good, bad in record.cells:
            if now - minutes < record.minute - age:
                found = found.plus(Totals(good, bad))
    for minute, each in further.items():
        if now - minutes < minute and (record is None or minute > record.minute):
            found = found.plus(each)
    return found
