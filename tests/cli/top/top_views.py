"""Samples and views of ``isochrone top`` for its tests, of hypothesis and by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st
from top_readings import a_reading

from isochrone.cli.top.samples import GATEWAYS, KINDS, MODELS, WORKERS, Line, Notice, Sample, Seen
from isochrone.cli.top.screen.view import View, press, resize, take_failure, take_sample

NAMES = ("cpu-1", "cpu-2", "cpu-10", "gpu", "Größe", "模型", "a\x1b[31mb", "", "x" * 200)
KEYS = (
    *("up", "down", "left", "right", "page up", "page down", "home", "end", "enter", "escape", "tab", "back tab"),
    *("backspace", "clear", "/", "?", "h", "p", " ", "R", "1", "2", "3", "j", "k", "g", "G"),
    *("n", "v", "o", "e", "s", "r", "x", "f", "u", "i", "l", "c", "m", "z", "é", "模"),
)


def a_line(name: str, requests: float | None = None, **others: float | None) -> Line:
    return Line(name, {"requests": requests, **others})


def a_sample(
    models: Sequence[Line] = (), workers: Sequence[Line] = (), gateways: Sequence[Line] = (), at: float = 1000.0
) -> Sample:
    lines = {MODELS: tuple(models), WORKERS: tuple(workers), GATEWAYS: tuple(gateways)}
    return Sample(at, "fleet plant", lines, Seen())


def a_view(sample: Sample, keys: Sequence[str] = (), width: int = 80, height: int = 24) -> View:
    view = take_sample(resize(View(), width, height), sample)
    for key in keys:
        view = press(view, key)
    return view


figures = st.none() | st.floats(0, 1e12)
severities = st.integers(0, 3)
texts = st.sampled_from(NAMES)


@st.composite
def lines(draw: st.DrawFn) -> tuple[Line, ...]:
    names = draw(st.lists(texts, unique=True, max_size=5))
    return tuple(
        Line(
            name,
            dict.fromkeys(("requests", "runs", "cpu"), draw(figures)) | {"p99_ms": draw(figures), "memory": 1e9},
            draw(st.sampled_from(("", "1", "10", "cpu"))),
            draw(st.sampled_from(("", "serving", "draining"))),
            draw(severities),
            (("fact", draw(texts)),),
        )
        for name in names
    )


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    made: Mapping[str, tuple[Line, ...]] = {kind: draw(lines()) for kind in KINDS}
    notices = tuple(Notice(text, draw(severities)) for text in draw(st.lists(texts, max_size=4)))
    reading = a_reading({"requests": 5.0}, {0.1: 3.0, float("inf"): 5.0}, {"gpu": a_reading({"requests": 5.0})})
    pairs = {WORKERS: dict.fromkeys(NAMES[:2], (reading, reading, 1.0))}
    return Sample(1000.0, draw(texts), made, Seen(), notices, pairs)


sizes = st.tuples(st.integers(0, 200), st.integers(0, 60))
#: A key, a sample, a failure or a size.
events = st.sampled_from(KEYS) | samples() | st.just(1234.5) | sizes


def after(view: View, event: object) -> View:
    if isinstance(event, str):
        return press(view, event)
    if isinstance(event, Sample):
        return take_sample(view, event)
    if isinstance(event, tuple):
        return resize(view, *event)
    assert isinstance(event, float)
    return take_failure(view, "no controller answers", event)
