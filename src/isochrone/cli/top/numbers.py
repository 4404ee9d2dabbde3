"""Figures as text: rates, milliseconds, shares of a core, memory. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

NONE: Final = "–"


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _count(value: float) -> str:
    return f"{value:.0f}"


def _milliseconds(value: float) -> str:
    return f"{value:.2f}"


def _share(value: float) -> str:
    return f"{value:.0%}"


def _memory(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"


#: By figure: its name in plain output and its format.
_FORMATS: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "requests": ("req/s", rate),
    "rejected": ("rejected/s", rate),
    "failures": ("failed/s", rate),
    "runs": ("runs/s", rate),
    "in_flight": ("in flight", _count),
    "p99_ms": ("p99 ms", _milliseconds),
    "cpu": ("cpu", _share),
    "memory": ("memory", _memory),
}


def unit(figure: str) -> str:
    return _FORMATS[figure][0]


def shown(figure: str, value: float | None) -> str:
    """The value of a figure, or a dash."""
    return NONE if value is None else _FORMATS[figure][1](value)


def figure_names() -> tuple[str, ...]:
    return tuple(_FORMATS)
