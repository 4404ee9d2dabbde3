"""The details of one line: what is known of it, plots of its trends, and its parts. Pure.

The parts of a model are the workers that run it; those of a worker or gateway are its models.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from isochrone.cli.console import span
from isochrone.cli.top import numbers
from isochrone.cli.top.figures import Figures, of_part
from isochrone.cli.top.readings import printable
from isochrone.cli.top.samples import MODELS, SINGULAR, WORKERS, Line, Sample
from isochrone.cli.top.screen.columns import compact
from isochrone.cli.top.screen.histories import KEPT, TRENDS
from isochrone.cli.top.screen.layout import fitted
from isochrone.cli.top.screen.ordering import natural
from isochrone.cli.top.screen.trends import Glyphs, condensed, plot
from isochrone.cli.top.screen.view import View

#: Lines of a plot, on a screen with fewer lines than the third number and on others.
_LOW_PLOT, _HIGH_PLOT, _HIGH_SCREEN = 2, 4, 30
_NAME_WIDTH = 14
_PART_FIGURES = ("requests", "rejected", "failures", "in_flight", "p99_ms")
_PART_WIDTH = 11


def details(view: View, glyphs: Glyphs) -> list[Text]:
    sample = view.data.sample
    lines = sample.lines.get(view.kind, ()) if sample is not None else ()
    line = next((each for each in lines if each.name == view.detailed), None)
    head = Text(f"{SINGULAR[view.kind]} {printable(view.detailed)}", style="bold")
    made = [head]
    if line is None or sample is None:
        made.append(Text(f"this {SINGULAR[view.kind]} is no longer there", style="yellow"))
    else:
        made += _facts(line, view.width)
    made += _plots(view, glyphs)
    if sample is not None and line is not None:
        made += _parts(sample, view.kind, line.name)
    return made


def _facts(line: Line, width: int) -> Iterator[Text]:
    known = [("state", line.state)] if line.state else []
    for name, value in (*known, *line.facts):
        yield Text.assemble((fitted(name, max(_NAME_WIDTH, len(name) + 1)), "dim"), printable(value))
    text = ""
    for name in numbers.figure_names():
        if line.figures.get(name) is not None:
            figure = f"{numbers.shown(name, line.figures.get(name))} {numbers.unit(name)}"
            if text and len(text) + 2 + len(figure) > width:
                yield Text(text)
                text = ""
            text += f"  {figure}" if text else figure
    yield Text(text or "no figures")


def _plots(view: View, glyphs: Glyphs) -> Iterator[Text]:
    histories = view.data.histories
    lines = _LOW_PLOT if view.height < _HIGH_SCREEN else _HIGH_PLOT
    for figure in TRENDS:
        series = histories.of(view.kind, view.detailed, figure)
        known = [value for value in series if value is not None]
        if not known:
            continue
        title = (
            f"{numbers.unit(figure)}  lowest {numbers.shown(figure, min(known))}  "
            f"mean {numbers.shown(figure, sum(known) / len(known))}  highest {numbers.shown(figure, max(known))}  "
            f"in the last {span(len(series) * view.interval)}"
        )
        yield Text("")
        yield Text(title, style="cyan")
        width = min(view.width, KEPT)
        values = condensed(series, histories.updates, max(width, len(series)), width)
        yield from (Text(row) for row in plot(values, width, lines, glyphs))


def _parts(sample: Sample, kind: str, name: str) -> Iterator[Text]:
    parts = parts_of(sample, kind, name)
    if not parts:
        return
    yield Text("")
    titles = "".join(fitted(numbers.unit(figure), _PART_WIDTH, right=True) for figure in _PART_FIGURES)
    width = min(32, max(len(part) for part in parts) + 1)
    yield Text(fitted("worker" if kind == MODELS else "model", width) + titles, style="bold")
    for part in sorted(parts, key=natural):
        figures = parts[part]
        cells = (compact(each, getattr(figures, each), _PART_WIDTH - 1) for each in _PART_FIGURES)
        yield Text(fitted(part, width) + "".join(fitted(text, _PART_WIDTH, right=True) for text in cells))


def parts_of(sample: Sample, kind: str, name: str) -> dict[str, Figures]:
    """By worker, or by model."""
    if kind == MODELS:
        workers = sample.pairs.get(WORKERS, {})
        return {worker: of_part(name, pair) for worker, pair in workers.items() if name in pair[1].models}
    pair = sample.pairs.get(kind, {}).get(name)
    return {model: of_part(model, pair) for model in pair[1].models} if pair is not None else {}
