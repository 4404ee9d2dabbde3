"""One line of text for each model and process: the output without a terminal. Pure."""

from __future__ import annotations

from isochrone.cli.console import clock
from isochrone.cli.top.numbers import figure_names, shown, unit
from isochrone.cli.top.readings import printable
from isochrone.cli.top.samples import GATEWAYS, MODELS, SINGULAR, WORKERS, Line, Sample


def plain_lines(sample: Sample) -> list[str]:
    return [
        f"{clock(sample.at)}  {SINGULAR[kind]} {printable(line.name)}  {_figures(line) or 'no figures'}"
        for kind in (MODELS, GATEWAYS, WORKERS)
        for line in sample.lines.get(kind, ())
    ]


def _figures(line: Line) -> str:
    known = [(name, line.figures.get(name)) for name in figure_names()]
    return "  ".join(f"{shown(name, value)} {unit(name)}" for name, value in known if value is not None)
