"""The columns of each kind of line: title, key that sorts by it, width, and which are left out first. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from isochrone.cli.top import numbers
from isochrone.cli.top.samples import GATEWAYS, MODELS, SINGULAR, WORKERS, Line

NAME, LABEL, STATE = "name", "label", "state"
#: Of powers of 1000 or 1024.
_SIGNS = ("", "K", "M", "G", "T", "P")


@dataclass(frozen=True, slots=True)
class Column:
    #: "name", "label", "state", or a figure.
    what: str
    title: str
    #: The key that sorts by it.
    key: str
    #: Characters that it needs.
    width: int
    #: Columns with the highest number are left out first on a narrow screen; 0: never.
    rank: int
    #: What the help says of it.
    meaning: str

    @property
    def is_text(self) -> bool:
        return self.what in (NAME, LABEL, STATE)


_REQUESTS = Column("requests", "req/s", "r", 7, 1, "requests per second")
_REJECTED = Column("rejected", "rej/s", "x", 6, 5, "rejected requests per second")
_FAILURES = Column("failures", "fail/s", "f", 6, 4, "failed requests per second")
_RUNS = Column("runs", "runs/s", "u", 7, 7, "runs per second on the workers")
_IN_FLIGHT = Column("in_flight", "flight", "i", 6, 6, "requests in flight")
_P99 = Column("p99_ms", "p99 ms", "l", 7, 2, "99th percentile of latency in milliseconds")
_CPU = Column("cpu", "cpu", "c", 5, 8, "processor time, in percent of one core")
_MEMORY = Column("memory", "mem", "m", 5, 9, "resident memory")
_STATE = Column(STATE, "state", "s", 8, 3, "serving, draining, …")


def _name(kind: str) -> Column:
    return Column(NAME, SINGULAR[kind], "n", 10, 0, "name")


COLUMNS: Final = {
    MODELS: (
        _name(MODELS),
        Column(LABEL, "ver", "v", 4, 10, "version"),
        _STATE,
        *(_REQUESTS, _REJECTED, _FAILURES, _RUNS, _IN_FLIGHT, _P99),
    ),
    WORKERS: (
        _name(WORKERS),
        Column(LABEL, "pool", "o", 6, 10, "pool"),
        _STATE,
        *(_REQUESTS, _REJECTED, _FAILURES, _IN_FLIGHT, _P99, _CPU, _MEMORY),
    ),
    GATEWAYS: (
        _name(GATEWAYS),
        Column(LABEL, "epoch", "e", 5, 10, "epoch"),
        _STATE,
        *(_REQUESTS, _REJECTED, _FAILURES, _IN_FLIGHT, _P99, _CPU, _MEMORY),
    ),
}


def column(kind: str, what: str) -> Column:
    return next(each for each in COLUMNS[kind] if each.what == what)


def value_of(line: Line, what: str) -> str | float | None:
    """What a column sorts by; None and "": unknown."""
    if what == NAME:
        return line.name
    if what == LABEL:
        return line.label
    if what == STATE:
        return line.state
    return line.figures.get(what)


def cell(line: Line, shown: Column) -> str:
    if shown.is_text:
        return str(value_of(line, shown.what) or numbers.NONE)
    return compact(shown.what, line.figures.get(shown.what), shown.width)


def compact(figure: str, value: float | None, width: int) -> str:
    """A figure in ``width`` characters: in short form where its usual text is too long."""
    if value is None:
        return numbers.NONE
    if figure == "memory":
        return _short(value, 1024.0, width)
    text = numbers.shown(figure, value)
    return text if len(text) <= width else _short(value * 100 if figure == "cpu" else value, 1000.0, width)


def _short(value: float, step: float, width: int) -> str:
    """``1.2M``; the base of memory is 1024."""
    power = 0
    while abs(value) >= step and power < len(_SIGNS):
        value /= step
        power += 1
    if power == len(_SIGNS):
        return "huge"
    text = f"{value:.1f}{_SIGNS[power]}" if abs(value) < 10 and power else f"{value:.0f}{_SIGNS[power]}"
    return text[:width]
