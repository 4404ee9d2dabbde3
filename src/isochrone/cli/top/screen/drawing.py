"""The lines of the screen: the frame around a list, the details of one line, or the help. Pure.

``draw`` gives exactly as many lines as the screen has, each exactly as wide, whatever the size.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text

from isochrone.cli.console import clock, counted, span
from isochrone.cli.top import numbers
from isochrone.cli.top.readings import printable
from isochrone.cli.top.samples import CHANGING, FAULT, GATEWAYS, KINDS, USUAL, WARNING, WORKERS, Sample
from isochrone.cli.top.screen.details import details
from isochrone.cli.top.screen.help_page import help_page
from isochrone.cli.top.screen.layout import fitted
from isochrone.cli.top.screen.listing import listing
from isochrone.cli.top.screen.trends import BLOCKS, Glyphs
from isochrone.cli.top.screen.view import MOST_NOTICES, Mode, View

STYLES = {USUAL: "", CHANGING: "cyan", WARNING: "yellow", FAULT: "red"}
_FOOTERS = {
    Mode.LIST: "q quit  ? help  / filter  enter details  p pause  tab next list  n r l … sort",
    Mode.FILTER: "enter keep  escape clear  up down select",
    Mode.HELP: "escape back  up down scroll  q quit",
    Mode.DETAILS: "escape back  up down scroll  p pause  q quit",
}


def draw(view: View, now: float, glyphs: Glyphs = BLOCKS) -> list[Text]:
    """``now``: seconds since 1970."""
    above = [_title(view, now), _totals(view), *_notices(view, now), _tabs(view, glyphs)]
    room = max(0, view.height - len(above) - 1)
    if view.mode is Mode.HELP:
        page = _scrolled(help_page(view.kind), view.scroll, room)
    elif view.mode is Mode.DETAILS:
        page = _scrolled(details(view, glyphs), view.scroll, room)
    else:
        page = listing(view, room, STYLES, glyphs)
    page += [Text("")] * (room - len(page))
    lines = [*[*above, *page[:room]][: max(0, view.height - 1)], _footer(view)]
    return [_exactly(line, view.width) for line in lines[-view.height :]] if view.height > 0 else []


def _exactly(line: Text, width: int) -> Text:
    length = cell_len(line.plain)
    if length > width:
        line = line.copy()
        line.truncate(width, overflow="crop")
        length = cell_len(line.plain)
    line = line.copy()
    line.append(" " * (width - length))
    line.no_wrap, line.end = True, ""
    return line


def _title(view: View, now: float) -> Text:
    sample = view.data.sample
    title = printable(sample.title) if sample is not None else "waiting for the first update"
    at = clock(sample.at).partition(" ")[2] if sample is not None else ""
    if sample is not None and view.paused is None and view.away is None:
        late = now - sample.at
        if late > max(3.0, 3 * view.interval):
            at = f"no update for {span(late)}"
    return _ends(Text(f"isochrone top  {title}", style="bold"), Text(at, style="dim"), view.width)


def _totals(view: View) -> Text:
    sample = view.data.sample
    if sample is None:
        return Text("")
    parts = [
        f"{numbers.shown(figure, _sum(sample, figure))} {numbers.unit(figure)}"
        for figure in ("requests", "rejected", "failures")
    ]
    unusual = sum(line.severity >= WARNING for kind in KINDS for line in sample.lines.get(kind, ()))
    right = Text(f"{counted(unusual, 'line')} need attention" if unusual > 1 else "1 line needs attention")
    return _ends(Text("  ".join(parts)), right if unusual else Text(""), view.width, "yellow")


def _sum(sample: Sample, figure: str) -> float | None:
    """At the gateways, which see each request once; without gateways, on the workers."""
    lines = sample.lines.get(GATEWAYS) or sample.lines.get(WORKERS) or ()
    known = [value for line in lines if (value := line.figures.get(figure)) is not None]
    return sum(known) if known else None


def _notices(view: View, now: float) -> list[Text]:
    found: list[Text] = []
    if view.away is not None:
        since = clock(view.away.since).partition(" ")[2]
        said = f"no update since {since} ({span(now - view.away.since)}), trying again: {printable(view.away.reason)}"
        found.append(Text(said, style="red"))
    sample = view.data.sample
    notices = sorted(sample.notices, key=lambda each: -each.severity) if sample is not None else []
    found += [Text(printable(notice.text), style=STYLES[notice.severity]) for notice in notices]
    more = len(found) - MOST_NOTICES
    if more > 0:
        last = found[MOST_NOTICES - 1]
        found[MOST_NOTICES - 1] = Text(f"({more} more) {last.plain}", style=last.style)
    return found[:MOST_NOTICES]


def _tabs(view: View, glyphs: Glyphs) -> Text:
    sample, line = view.data.sample, Text()
    for number, kind in enumerate(KINDS, 1):
        count = len(sample.lines.get(kind, ())) if sample is not None else 0
        line.append(f" {number} {kind} {count} ", style="reverse bold" if kind == view.kind else "")
        line.append(glyphs.bar if kind != KINDS[-1] else "", style="dim")
    if view.tab.filter or view.mode is Mode.FILTER:
        cursor = "_" if view.mode is Mode.FILTER else ""
        line.append(f"  filter: {printable(view.tab.filter)}{cursor}", style="yellow")
    return _ends(line, Text(" PAUSED " if view.paused is not None else ""), view.width, "reverse yellow")


def _footer(view: View) -> Text:
    return Text(fitted(_FOOTERS[view.mode], view.width), style="dim")


def _ends(left: Text, right: Text, width: int, style: str = "") -> Text:
    """Two texts at both ends of a line; the right one is left out if there is no room."""
    if style:
        right.stylize(style)
    free = width - cell_len(left.plain) - cell_len(right.plain)
    return left.append(" " * free).append_text(right) if right.plain and free >= 1 else left


def _scrolled(lines: list[Text], scroll: int, room: int) -> list[Text]:
    first = min(scroll, max(0, len(lines) - room))
    return lines[first : first + room]
