"""The view of ``isochrone top``: keys, samples, failures and sizes, in any order."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from top_views import KEYS, a_line, a_sample, a_view, after, events, samples

from isochrone.cli.top.samples import GATEWAYS, KINDS, MODELS, WORKERS, Sample
from isochrone.cli.top.screen.columns import COLUMNS, value_of
from isochrone.cli.top.screen.drawing import draw
from isochrone.cli.top.screen.histories import KEPT, Histories, add_sample
from isochrone.cli.top.screen.ordering import matching, natural, ordered
from isochrone.cli.top.screen.trends import ASCII
from isochrone.cli.top.screen.view import Mode, View, press, resize, take_failure, take_sample

FLEET = a_sample(
    models=[a_line("detector", 5.0), a_line("tracker", 9.0), a_line("planner")],
    workers=[a_line(f"cpu-{number}", float(number)) for number in range(1, 41)],
    gateways=[a_line("gw-1", 14.0)],
)


@given(st.lists(events, max_size=12))
def test_no_sequence_of_events_raises_and_every_frame_has_the_size_of_the_screen(events: list[object]) -> None:
    view = View()
    for event in events:
        view = after(view, event)
        frame = draw(view, 1300.0, ASCII)
        assert len(frame) == max(0, view.height)
        assert {line.cell_len for line in frame} <= {max(0, view.width)}
        text = "\n".join(line.plain for line in frame)
        assert "\x1b" not in text


@given(st.lists(events, max_size=12))
def test_the_selection_is_always_a_line_in_view(events: list[object]) -> None:
    view = View()
    for event in events:
        view = after(view, event)
        lines = view.lines()
        if lines:
            assert lines[view.tab.place].name == view.tab.selected
            assert view.tab.offset <= view.tab.place < view.tab.offset + view.page()


@given(samples(), st.lists(st.sampled_from([key for key in KEYS if key not in ("/", "?", "h", "enter")])), samples())
def test_the_selection_stays_on_its_line_by_name(first: Sample, keys: list[str], second: Sample) -> None:
    view = a_view(first, keys)
    chosen = view.tab.selected
    later = take_sample(view, second)
    if view.lines() and chosen in [line.name for line in later.lines()]:
        assert later.tab.selected == chosen
    # Another order moves the line, not the selection.
    for column in COLUMNS[view.kind]:
        if later.lines():
            assert press(later, column.key).tab.selected == later.tab.selected


@given(samples(), st.sampled_from(KINDS), st.booleans(), st.data())
def test_lines_are_in_the_order_of_their_column_and_unknown_ones_last(
    sample: Sample, kind: str, descending: bool, data: st.DataObject
) -> None:
    what = data.draw(st.sampled_from([column.what for column in COLUMNS[kind]]))
    lines = ordered(sample.lines[kind], what, descending)
    assert sorted(line.name for line in lines) == sorted(line.name for line in sample.lines[kind])
    values = [value_of(line, what) for line in lines]
    known = [value for value in values if value not in (None, "")]
    assert values[: len(known)] == known
    ranks = [natural(value) if isinstance(value, str) else value for value in known]
    pairs = list(itertools.pairwise(ranks))
    assert all(a >= b if descending else a <= b for a, b in pairs)  # type: ignore[operator]


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_has_a_key_of_its_own_that_does_nothing_else(kind: str) -> None:
    keys = [column.key for column in COLUMNS[kind]]
    assert len(set(keys)) == len(keys)
    for column in COLUMNS[kind]:
        view = press(a_view(FLEET, [str(KINDS.index(kind) + 1)]), column.key)
        assert (view.mode, view.kind, view.is_over, view.tab.sort) == (Mode.LIST, kind, False, column.what)


def test_a_column_is_first_sorted_from_its_highest_and_then_reversed() -> None:
    view = a_view(FLEET)
    assert [line.name for line in view.lines()] == ["tracker", "detector", "planner"]
    assert [line.name for line in press(view, "r").lines()] == ["detector", "tracker", "planner"]
    assert [line.name for line in press(view, "n").lines()] == ["detector", "planner", "tracker"]
    assert [line.name for line in press(press(view, "n"), "R").lines()] == ["tracker", "planner", "detector"]


def test_names_sort_by_their_numbers() -> None:
    names = ["cpu-10", "cpu-2", "cpu-1", "b", "cpu-02a", "1" * 5000]
    assert sorted(names, key=natural) == ["1" * 5000, "b", "cpu-1", "cpu-2", "cpu-02a", "cpu-10"]


def test_tabs_go_around_and_keep_their_own_order_and_selection() -> None:
    view = a_view(FLEET, ["down", "tab", "n", "end"])
    assert (view.kind, view.tab.selected) == (WORKERS, "cpu-40")
    assert view.tab.offset == 40 - view.page()
    view = press(press(view, "right"), "right")
    assert (view.kind, view.tab.selected, view.tab.sort) == (MODELS, "detector", "requests")
    assert press(view, "back tab").kind == GATEWAYS
    assert press(view, "2").tab.selected == "cpu-40"


def test_a_filter_is_typed_seen_at_once_and_cleared() -> None:
    view = a_view(FLEET, ["2", "/", *"CPU-3q"])
    assert (view.mode, view.is_over, view.lines()) == (Mode.FILTER, False, [])
    view = press(view, "backspace")
    assert len(view.lines()) == 11
    view = press(press(view, "enter"), "end")
    assert (view.mode, view.tab.selected) == (Mode.LIST, "cpu-3")
    assert len(press(view, "escape").lines()) == 40
    assert press(view, "escape").tab.selected == "cpu-3"
    assert len(a_view(FLEET, ["2", "/", *"zz", "clear", *"cpu-40", "enter"]).lines()) == 1
    assert len(a_view(FLEET, ["2", "/", *"x" * 500]).tab.filter) == 100


def test_a_filter_looks_at_names_labels_and_states() -> None:
    lines = FLEET.lines[WORKERS]
    assert matching(lines, "") == list(lines)
    assert [line.name for line in matching(lines, "CPU-4")] == ["cpu-4", "cpu-40"]


def test_a_selected_line_that_disappears_gives_its_place_to_the_next() -> None:
    view = a_view(FLEET, ["n", "home", "down"])
    assert view.tab.selected == "planner"
    view = take_sample(view, a_sample(models=[a_line("detector"), a_line("tracker")]))
    assert (view.tab.selected, view.tab.place) == ("tracker", 1)
    # A line that returns does not take the selection away again.
    assert take_sample(view, FLEET).tab.selected == "tracker"
    assert take_sample(view, a_sample()).lines() == []


def test_a_pause_keeps_figures_and_trends_and_ends_with_the_newest() -> None:
    view = press(a_view(FLEET), "p")
    later = take_sample(view, a_sample(models=[a_line("detector", 77.0)]))
    assert later.data == view.data
    assert len(later.lines()) == 3
    resumed = press(later, "p")
    assert [line.figures["requests"] for line in resumed.lines()] == [77.0]
    assert resumed.data.histories.of(MODELS, "detector", "requests") == (5.0, 77.0)


def test_failures_keep_the_last_figures_and_the_time_of_the_first() -> None:
    view = take_failure(take_failure(a_view(FLEET), "no answer", 50.0), "still none", 60.0)
    assert view.away is not None
    assert (view.away.since, view.away.reason) == (50.0, "still none")
    assert len(view.lines()) == 3
    assert view.data.histories.of(MODELS, "detector", "requests") == (5.0, None, None)
    assert take_sample(view, FLEET).away is None


def test_details_are_of_one_line_until_they_are_closed() -> None:
    view = a_view(FLEET, ["enter"])
    assert (view.mode, view.detailed) == (Mode.DETAILS, "tracker")
    assert take_sample(view, a_sample(models=[a_line("other", 1.0)])).detailed == "tracker"
    assert press(view, "down").scroll == 1
    assert press(press(view, "down"), "home").scroll == 0
    assert press(view, "escape").mode is Mode.LIST
    assert a_view(a_sample(), ["enter"]).mode is Mode.LIST


def test_q_ends_it_everywhere_but_in_a_filter() -> None:
    for keys in ([], ["?"], ["enter"]):
        assert press(a_view(FLEET, keys), "q").is_over
    assert not press(a_view(FLEET, ["/"]), "q").is_over


def test_a_smaller_screen_keeps_the_selection_in_view() -> None:
    view = resize(a_view(FLEET, ["2", "n", "end"]), 80, 10)
    assert view.tab.offset <= view.tab.place < view.tab.offset + view.page()
    assert view.tab.selected == "cpu-40"


def test_histories_are_bounded_in_time_and_in_lines() -> None:
    histories = Histories()
    for number in range(KEPT + 20):
        histories = add_sample(histories, a_sample(models=[a_line("a", float(number))]))
    assert histories.of(MODELS, "a", "requests") == tuple(map(float, range(20, KEPT + 20)))
    for _ in range(KEPT):
        histories = add_sample(histories, None)
    assert histories.series == {}
    many = a_sample(models=[a_line(f"m{number}", 1.0) for number in range(10_000)])
    assert len(add_sample(Histories(), many).series) <= 6000
