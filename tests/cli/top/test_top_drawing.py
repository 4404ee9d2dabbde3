"""What the screen of ``isochrone top`` shows: lists, details, help, notices, trends, in several sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from top_readings import a_reading
from top_views import a_line, a_sample, a_view

from isochrone.cli.top.samples import CHANGING, FAULT, MODELS, WARNING, WORKERS, Line, Notice, Sample, Seen
from isochrone.cli.top.screen.columns import COLUMNS, compact
from isochrone.cli.top.screen.drawing import draw
from isochrone.cli.top.screen.layout import fitted, widths
from isochrone.cli.top.screen.trends import ASCII, BLOCKS, condensed, glyphs_for, plot, sparkline
from isochrone.cli.top.screen.view import View, press, resize, take_failure, take_sample

FLEET = a_sample(
    models=[a_line("detector", 1234.0, rejected=0.0, failures=0.25, runs=2468.0, in_flight=3.0, p99_ms=1.5)],
    workers=[
        Line("cpu-1", {"requests": 617.0, "p99_ms": 1.5, "cpu": 0.5, "memory": 2.0**27}, "cpu"),
        Line("cpu-2", {"requests": None}, "cpu", "draining", WARNING, (("address", "h:1"),)),
    ],
    gateways=[a_line("gw-1", 1234.0, rejected=0.0, failures=0.2)],
)


def shown(view: View, now: float = 1000.0) -> list[str]:
    return [line.plain.rstrip() for line in draw(view, now)]


def words(view: View, now: float = 1000.0) -> str:
    return " ".join(" ".join(shown(view, now)).split())


def test_a_list_has_title_totals_tabs_header_lines_and_keys() -> None:
    lines = shown(a_view(FLEET))
    assert lines[0].startswith("isochrone top  fleet plant")
    assert lines[1].startswith("1,234 req/s  0 rejected/s  0.2 failed/s")
    assert lines[1].endswith("1 line needs attention")
    assert lines[2] == " 1 models 1 │ 2 workers 2 │ 3 gateways 1"
    assert lines[3].split() == [
        "model",
        "ver",
        "▼req/s",
        "rej/s",
        "fail/s",
        "runs/s",
        "flight",
        "p99",
        "ms",
        "rate",
        "p99",
    ]
    assert lines[4].split()[:8] == ["detector", "–", "1,234", "0", "0.2", "2,468", "3", "1.50"]
    assert "q quit" in lines[-1]
    assert len(lines) == 24


def test_workers_show_memory_cpu_and_an_unusual_state() -> None:
    said = words(a_view(FLEET, ["2"], width=120))
    assert "cpu-1 cpu – 617 – – – 1.50 50% 128M" in said
    assert "cpu-2 cpu draining – – – – – – –" in said
    # While all are as usual, the state has no column.
    assert "state" not in words(a_view(FLEET, ["1"], width=120))


@pytest.mark.parametrize("keys", [["1"], ["2"], ["3"]])
def test_80_columns_have_all_figures_and_both_trends(keys: list[str]) -> None:
    usual = a_sample(
        models=FLEET.lines[MODELS],
        workers=FLEET.lines[WORKERS][:1],
        gateways=[a_line("gw-1", 1.0, p99_ms=1.0)],
    )
    view = a_view(usual, keys)
    header = shown(view)[3 + view.notices()]
    for column in COLUMNS[view.kind]:
        assert column.what == "state" or column.title in header
    assert "rate" in header


def test_narrow_screens_keep_the_name_and_the_most_important_figures() -> None:
    lines = shown(a_view(FLEET, width=28))
    assert lines[3].split() == ["model", "▼req/s", "p99", "ms"]
    assert lines[4].split() == ["detector", "1,234", "1.50"]
    assert shown(a_view(FLEET, width=3, height=6))[4] == "de…"


@given(
    st.integers(0, 300), st.sampled_from(list(COLUMNS)), st.integers(0, 2), st.lists(st.text(max_size=80), max_size=5)
)
def test_columns_never_take_more_than_the_screen_has(width: int, kind: str, trends: int, names: list[str]) -> None:
    places = widths(COLUMNS[kind], names, trends, width)
    used = sum(size + 1 for _, size in places.columns) + sum(size + 1 for size in places.trends) - 1
    assert used <= max(width, 0) or used <= 0
    assert places.columns[0][0].what == "name"


@given(st.text(max_size=50), st.integers(0, 60), st.booleans())
def test_a_fitted_text_is_exactly_as_wide_and_controls_nothing(text: str, width: int, right: bool) -> None:
    made = fitted(text, width, right)
    assert cell_len(made) == width
    assert made.isprintable()


@given(st.sampled_from(["requests", "in_flight", "p99_ms", "cpu", "memory"]), st.floats(0, 1e20), st.integers(5, 9))
def test_a_figure_fits_its_column(figure: str, value: float, width: int) -> None:
    assert 0 < len(compact(figure, value, width)) <= width


def test_large_figures_are_shortened() -> None:
    assert compact("requests", 12_345_678.0, 7) == "12M"
    assert compact("memory", 3.5 * 2**30, 5) == "3.5G"
    assert compact("memory", 1500 * 2**20, 5) == "1.5G"
    assert compact("cpu", 12.0, 5) == "1200%"


def test_details_have_facts_figures_plots_and_parts() -> None:
    before = a_reading({"requests": 1.0}, {}, {"detector": a_reading({"requests": 1.0})})
    later = a_reading(
        {"requests": 5.0}, {}, {"detector": a_reading({"requests": 5.0}), "tracker": a_reading({"requests": 2.0})}
    )
    pairs = {WORKERS: {"cpu-2": (before, later, 2.0), "cpu-10": (before, later, 1.0)}}
    sample = Sample(1000.0, "fleet plant", FLEET.lines, Seen(), (), pairs)
    view = a_view(sample, ["enter"])
    said = words(view)
    assert "model detector 1,234 req/s 0 rejected/s 0.2 failed/s 2,468 runs/s 3 in flight 1.50 p99 ms" in said
    assert "req/s lowest 1,234 mean 1,234 highest 1,234 in the last 1.0 s" in said
    tall = words(resize(view, 80, 40))
    assert "worker req/s rejected/s failed/s in flight p99 ms cpu-2 2.0 – – – – cpu-10 4.0 – – – –" in tall
    workers = words(a_view(sample, ["2", "end", "enter"]))
    assert "worker cpu-2 state draining address h:1 no figures" in workers
    assert "model req/s rejected/s failed/s in flight p99 ms detector 2.0" in workers
    gone = take_sample(view, a_sample(models=[a_line("other")]))
    assert "model detector this model is no longer there" in words(gone)
    assert "req/s lowest 1,234" in words(gone)


def test_long_details_and_help_scroll_to_their_end_and_no_further() -> None:
    view = a_view(FLEET, ["?"], height=12)
    first = shown(view)
    for key in ("end", "down", "down"):
        view = press(view, key)
    assert "resident memory" not in " ".join(first)
    assert "99th percentile" in shown(view)[-2]


def test_the_help_names_every_key_of_the_list() -> None:
    said = words(a_view(FLEET, ["2", "?"], height=40))
    for column in COLUMNS[WORKERS]:
        assert f"{column.key} {column.title}: {column.meaning}" in said
    assert "pause" in said


def test_a_failure_says_since_when_and_why_above_the_last_figures() -> None:
    view = take_failure(a_view(FLEET), "no controller answers at\x1b[2J h", 1000.0)
    lines = shown(view, 1012.0)
    assert "(12.0 s), trying again: no controller answers at�[2J h" in lines[2]
    assert "detector" in lines[5]


def test_a_late_update_is_said_and_a_pause_is_marked() -> None:
    assert "no update for 5.0 s" in shown(a_view(FLEET), 1005.0)[0]
    assert "no update" not in shown(a_view(FLEET), 1002.0)[0]
    paused = shown(a_view(FLEET, ["p"]), 1500.0)
    assert paused[2].endswith("PAUSED")
    assert "no update" not in paused[0]


def test_notices_are_three_at_most_the_gravest_first() -> None:
    notices = tuple(
        Notice(f"notice {number}", severity) for number, severity in enumerate((CHANGING, FAULT, CHANGING, FAULT))
    )
    lines = shown(a_view(Sample(1000.0, "fleet", FLEET.lines, Seen(), notices)))
    assert lines[2:5] == ["notice 1", "notice 3", "(1 more) notice 0"]


def test_a_screen_without_lines_says_why() -> None:
    assert "no figures yet" in words(View())
    assert "waiting for the first update" in words(View())
    assert "no gateways" in words(a_view(a_sample(models=FLEET.lines[MODELS]), ["3"]))
    assert "no models match the filter" in words(a_view(FLEET, ["/", "z", "enter"]))


def test_trends_show_the_newest_value_on_the_right_and_gaps_as_gaps() -> None:
    assert sparkline([0.0, 1.0, None, 8.0], 6) == "  ▁▁ █"
    assert sparkline([0.0, 0.0], 2) == "▁▁"
    assert sparkline([], 3) == "   "
    assert plot([8.0, 16.0], 2, 2) == [" █", "██"]
    assert sparkline([0.0, 8.0], 2, ASCII) == "_#"


def test_a_trend_in_few_characters_keeps_its_shape_from_one_update_to_the_next() -> None:
    values = [float(number % 7) for number in range(100)]
    for updates in range(61, 99):
        now = condensed(values[:updates], updates, 60, 10)
        then = condensed(values[: updates + 1], updates + 1, 60, 10)
        # All but the oldest and the newest character, which lose and gain updates.
        common = now[1:-1]
        assert common == then[1 : 1 + len(common)] or common[1:] == then[1 : len(common)]


@given(
    st.lists(st.none() | st.floats(0, 1e9), max_size=300), st.integers(0, 300), st.integers(0, 400), st.integers(0, 80)
)
def test_condensed_values_fit_and_keep_the_highest(
    values: list[float | None], earlier: int, span: int, width: int
) -> None:
    found = condensed(values, len(values) + earlier, span, width)
    assert len(found) <= width
    recent = [value for value in values[-span:] if value is not None] if span else []
    if width >= span and span >= len(values):
        assert found == values
    assert all(value is None or value in recent for value in found)
    for row in plot(found, width, 3):
        assert len(row) == width


def test_the_characters_are_those_that_the_terminal_can_show() -> None:
    assert glyphs_for("utf-8") is BLOCKS
    assert glyphs_for("iso8859-1") is ASCII
    assert glyphs_for("no such encoding") is ASCII
