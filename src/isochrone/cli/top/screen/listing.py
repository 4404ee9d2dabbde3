"""The list of one kind: the header and the lines that are in view, with trends. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from isochrone.cli.top.samples import MODELS, USUAL, Line
from isochrone.cli.top.screen.columns import COLUMNS, STATE, Column, cell
from isochrone.cli.top.screen.layout import Widths, fitted, widths
from isochrone.cli.top.screen.trends import Glyphs, condensed, sparkline
from isochrone.cli.top.screen.view import View

#: Updates of a trend in the list: two minutes at the default interval. Details have all.
_UPDATES = 120


def listing(view: View, room: int, styles: Mapping[int, str], glyphs: Glyphs) -> list[Text]:
    """At most ``room`` lines with the header."""
    lines = view.lines()
    figures = trend_figures(view, lines)
    columns = _columns(view, lines)
    places = widths(columns, [line.name for line in lines], len(figures), view.width)
    made = [_header(view, places, figures, glyphs)]
    if not lines:
        made.append(Text(_nothing(view), style="dim"))
    shown = lines[view.tab.offset : view.tab.offset + max(0, room - 1)]
    for place, line in enumerate(shown, view.tab.offset):
        style = "reverse" if place == view.tab.place else styles[line.severity]
        made.append(Text(_row(view, line, places, figures, glyphs), style=style))
    return made[: max(0, room)]


def trend_figures(view: View, lines: list[Line]) -> tuple[str, ...]:
    """The figures whose trends are shown: those that some line has. Models without gateways have runs alone."""
    histories = view.data.histories
    rate = ("requests", "runs") if view.kind == MODELS else ("requests",)
    known = [each for each in rate if any(histories.of(view.kind, line.name, each) for line in lines)][:1]
    has_p99 = any(histories.of(view.kind, line.name, "p99_ms") for line in lines)
    return (*known, "p99_ms") if has_p99 else tuple(known)


def _columns(view: View, lines: list[Line]) -> list[Column]:
    """The state has a column while some line has an unusual one."""
    with_state = view.tab.sort == STATE or any(line.severity != USUAL for line in lines)
    return [each for each in COLUMNS[view.kind] if each.what != STATE or with_state]


def _header(view: View, places: Widths, figures: tuple[str, ...], glyphs: Glyphs) -> Text:
    header, tab = Text(style="bold"), view.tab
    sign = glyphs.descending if tab.descending else glyphs.ascending
    for number, (column, width) in enumerate(places.columns):
        is_sorted = column.what == tab.sort
        # A title that fills its column has the sign in the space before it.
        is_full = is_sorted and len(column.title) >= width
        header.append((sign if is_full else " ") if number else "")
        title = f"{sign}{column.title}" if is_sorted and not is_full else column.title
        header.append(fitted(title, width, right=not column.is_text), style="underline" if is_sorted else "")
    for figure, width in zip(figures, places.trends, strict=False):
        header.append(" " + fitted("p99" if figure == "p99_ms" else "rate", width), style="dim")
    return header


def _row(view: View, line: Line, places: Widths, figures: tuple[str, ...], glyphs: Glyphs) -> str:
    cells = [fitted(cell(line, column), width, right=not column.is_text) for column, width in places.columns]
    histories = view.data.histories
    for figure, width in zip(figures, places.trends, strict=False):
        series = histories.of(view.kind, line.name, figure)
        values = condensed(series, histories.updates, min(_UPDATES, max(width, histories.updates)), width)
        cells.append(sparkline(values, width, glyphs))
    return " ".join(cells)


def _nothing(view: View) -> str:
    if view.data.sample is None:
        return "no figures yet"
    return f"no {view.kind} match the filter; escape clears it" if view.tab.filter else f"no {view.kind}"
