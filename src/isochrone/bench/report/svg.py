"""A plot as inline SVG: axes, lines, bands, bars and cells. Colours are classes of the page's style."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from isochrone.bench.report.scales import Scale

_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 14, 10, 46
_INNER_WIDTH, _INNER_HEIGHT = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

Points = Sequence[tuple[float, float]]


class Plot:
    """One plot with its caption and legend."""

    def __init__(self, caption: str, x: Scale, y: Scale, x_label: str) -> None:
        self._caption = caption
        self._x, self._y = x, y
        self._x_label = x_label
        self._marks: list[str] = []
        self._legend: list[tuple[str, str]] = []

    def line(self, points: Points, style: str) -> None:
        if len(points) == 1:
            self.dot(*points[0], style, "")
        elif points:
            self._marks.append(f'<polyline class="line {style}" points="{" ".join(self._pairs(points))}"/>')

    def band(self, lower: Points, upper: Points, style: str) -> None:
        """The area between two lines over the same x."""
        if lower and upper:
            around = [*self._pairs(upper), *reversed(list(self._pairs(lower)))]
            self._marks.append(f'<polygon class="band {style}" points="{" ".join(around)}"/>')

    def dot(self, x: float, y: float, style: str, text: str) -> None:
        """``text``: shown by a pointer that rests on it."""
        title = f"<title>{escape(text)}</title>" if text else ""
        self._marks.append(
            f'<circle class="dot {style}" cx="{self._x_of(x):.1f}" cy="{self._y_of(y):.1f}" r="3.5">{title}</circle>'
        )

    def boxes(self, boxes: Iterable[tuple[float, float, float, float]], style: str) -> None:
        """Filled rectangles (x0, y0, x1, y1), as one path."""
        parts = []
        for x0, y0, x1, y1 in boxes:
            left, right, top, bottom = self._x_of(x0), self._x_of(x1), self._y_of(y1), self._y_of(y0)
            parts.append(f"M{left:.1f} {top:.1f}H{right:.1f}V{bottom:.1f}H{left:.1f}z")
        if parts:
            self._marks.append(f'<path class="{style}" d="{"".join(parts)}"/>')

    def legend(self, name: str, style: str) -> None:
        self._legend.append((name, style))

    def html(self) -> str:
        entries = "".join(
            f'<span><svg class="key" viewBox="0 0 24 10" aria-hidden="true"><path class="line {style}" d="M1 5H23"/>'
            f"</svg>{escape(name)}</span>"
            for name, style in self._legend
        )
        legend = f'<div class="legend">{entries}</div>' if entries else ""
        return (
            f"<figure><figcaption>{escape(self._caption)}</figcaption>"
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(self._caption)}">'
            f"{''.join(self._axes())}{''.join(self._marks)}</svg>{legend}</figure>"
        )

    def _axes(self) -> Iterable[str]:
        bottom = _TOP + _INNER_HEIGHT
        for value, label in self._y.ticks:
            y = self._y_of(value)
            yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
        for value, label in self._x.ticks:
            x = self._x_of(value)
            yield f'<path class="grid" d="M{x:.1f} {bottom}v5"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 19}" text-anchor="middle">{escape(label)}</text>'
        centre = _LEFT + _INNER_WIDTH / 2
        yield f'<text x="{centre:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(self._x_label)}</text>'

    def _pairs(self, points: Points) -> Iterable[str]:
        return (f"{self._x_of(x):.1f},{self._y_of(y):.1f}" for x, y in points)

    def _x_of(self, value: float) -> float:
        return _LEFT + self._x.place(value) * _INNER_WIDTH

    def _y_of(self, value: float) -> float:
        return _TOP + (1 - self._y.place(value)) * _INNER_HEIGHT
