"""Line plots as inline SVG, without a library and without assets: the report is one file that opens anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 520, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 16, 34, 46
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
_GRID_LINES = 4

Series = Mapping[str, Sequence[tuple[float, float]]]


def line_plot(title: str, x_label: str, y_label: str, series: Series, limit: tuple[str, float] | None = None) -> str:
    """Positions on the x axis are sizes that double. ``limit``: a named horizontal line."""
    points = [point for line in series.values() for point in line]
    sizes = sorted({x for x, _ in points})
    highest = max([y for _, y in points] + ([limit[1]] if limit is not None else [])) * 1.08 or 1.0
    x_of = _x_scale(sizes)

    def y_of(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / highest * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 16 * len(series)}" role="img" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="18" class="title">{escape(title)}</text>',
        *_grid(highest, y_of),
        *(_text(x_of(size), _HEIGHT - _BOTTOM + 18, f"{size:g}", "middle") for size in sizes),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x_label, "middle"),
        f'<text transform="translate(14 {(_TOP + _HEIGHT - _BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>",
    ]
    if limit is not None:
        name, value = limit
        parts.append(_line(_LEFT, y_of(value), _WIDTH - _RIGHT, y_of(value), 'class="limit"'))
        parts.append(_text(_WIDTH - _RIGHT, y_of(value) - 4, name, "end"))
    for number, (name, line) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [(x_of(x), y_of(y)) for x, y in sorted(line)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
        below = _HEIGHT + 16 * number + 6
        parts.append(f'<rect x="{_LEFT}" y="{below - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(_LEFT + 16, below, name, "start"))
    return "".join([*parts, "</svg>"])


def _x_scale(sizes: Sequence[float]) -> Callable[[float], float]:
    low, high = math.log2(sizes[0]), math.log2(sizes[-1])
    width = _WIDTH - _LEFT - _RIGHT - 24

    def x_of(size: float) -> float:
        share = (math.log2(size) - low) / (high - low) if high > low else 0.5
        return _LEFT + 12 + share * width

    return x_of


def _grid(highest: float, y_of: Callable[[float], float]) -> list[str]:
    parts = []
    for number in range(_GRID_LINES + 1):
        value = highest * number / _GRID_LINES
        parts.append(_line(_LEFT, y_of(value), _WIDTH - _RIGHT, y_of(value), 'class="grid"'))
        parts.append(_text(_LEFT - 6, y_of(value) + 4, _number(value), "end"))
    return parts


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _line(x0: float, y0: float, x1: float, y1: float, style: str) -> str:
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" {style}/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
