"""The history of a fleet's figures: frames merge in any grouping, memory stays bounded, nothing is counted twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.control.figures.frames import (
    OTHER_MODELS,
    Frame,
    GatewayFigures,
    ModelFigures,
    StageFigures,
    WorkerFigures,
    bucket_bounds_ns,
    merged_frames,
    merged_models,
)
from isochrone.control.figures.history import RINGS, History
from isochrone.observe.snapshot import BUCKET_BOUNDS_NS

_count = st.integers(0, 50)
_buckets = st.dictionaries(st.integers(0, len(BUCKET_BOUNDS_NS)), st.integers(1, 20), max_size=4)
_stages = st.dictionaries(
    st.sampled_from(("gateway", "queue")), st.builds(StageFigures, st.integers(0, 10**9), _count), max_size=2
)


@st.composite
def _model(draw: st.DrawFn, name: str = "m", version: str = "1") -> ModelFigures:
    durations = draw(_buckets)
    rejected, late, failed, cancelled, excused = (draw(_count) for _ in range(5))
    outcomes = sum(durations.values()), rejected, late, failed, cancelled, excused
    return ModelFigures(name, version, *outcomes, durations, draw(st.integers(0, 10**10)), draw(_stages))


@st.composite
def _frames(draw: st.DrawFn) -> list[Frame]:
    at = 1_800_000_000 + draw(st.integers(0, 59))
    made = []
    for _ in range(draw(st.integers(1, 30))):
        names = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=6))
        models = {(name, "1"): draw(_model(name)) for name in names}
        gateways = {"g": GatewayFigures("g", requests=draw(_count), in_flight=draw(_count))}
        made.append(Frame(at, models, {"w": WorkerFigures("w")}, gateways))
        at += draw(st.sampled_from((1, 1, 1, 2, 7, 61, 400)))
    return made


@given(_model(), _model(), _model())
def test_merging_models_is_associative(a: ModelFigures, b: ModelFigures, c: ModelFigures) -> None:
    assert a.merged(b).merged(c) == a.merged(b.merged(c))
    assert a.merged(b).requests == a.requests + b.requests


@settings(max_examples=50)
@given(_frames(), st.data())
def test_merging_frames_is_associative(frames: list[Frame], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(frames)))
    parts = [merged_frames(part, 0, 1) for part in (frames[:cut], frames[cut:])]
    assert merged_frames(parts, 0, 1) == merged_frames(frames, 0, 1)


@settings(max_examples=50)
@given(_frames())
def test_the_windows_of_all_rings_have_every_request_of_their_time(frames: list[Frame]) -> None:
    history = History()
    for frame in frames:
        history.add(frame)
    for length, kept in RINGS:
        last = frames[-1].at - frames[-1].at % length + length
        ours = [frame for frame in frames if frame.at >= last - kept]
        for name in "abcdef":
            expected = merged_models(name, (frame.model(name) for frame in ours))
            assert history.window(name, None, kept) == expected


@settings(max_examples=50)
@given(_frames(), st.integers(1, 4), st.integers(1, 20))
def test_a_history_is_bounded_and_loses_no_request_of_the_present(
    frames: list[Frame], most_models: int, most_figures: int
) -> None:
    history = History(most_models, most_figures, most_workers=5)
    for frame in frames:
        history.add(frame)
        latest = history.latest()
        assert latest is not None
        assert latest.at == frame.at
        assert len(latest.models) <= most_models + 1
        assert sum(each.requests for each in latest.models.values()) == sum(
            each.requests for each in frame.models.values()
        )
        for length, kept in RINGS:
            found = history.frames(kept)
            assert len(found) <= kept // length
            older = found[:-1]
            assert sum(len(each.models) for each in older) <= most_figures
        assert sum(len(each.workers) for each in history.frames(300)) <= 5


def test_models_beyond_the_limit_are_summed_under_one_name() -> None:
    history = History(most_models=2)
    models = {(name, "1"): ModelFigures(name, "1", answered=number) for number, name in enumerate("abcd", 1)}
    history.add(Frame(100, models))
    assert history.window(OTHER_MODELS, None, 1).answered == 3 + 4
    assert history.window("a", None, 1).answered == 1
    # Five minutes later, a place is free.
    history.add(Frame(500, {("d", "1"): ModelFigures("d", "1", answered=9)}))
    assert history.window("d", None, 1).answered == 9


def test_budgets_have_all_models_whatever_has_a_place() -> None:
    history = History(most_models=1, most_names=3)
    stages = {"gateway": StageFigures(5, 1)}
    for at in range(1_800_000_050, 1_800_000_070):
        models = {(name, "1"): ModelFigures(name, "1", failed=1, stages=stages) for name in "abc"}
        history.add(Frame(at, {**models, ("a", "2"): ModelFigures("a", "2", answered=1, durations={3: 1})}))
    frames = history.budget_frames()
    assert [frame.at for frame in frames] == [1_800_000_000 + 60 * n for n in range(len(frames))]
    assert all(frame.is_whole for frame in frames)
    total = {name: merged_models(name, (frame.model(name) for frame in frames)) for name in "abc"}
    assert (total["a"].answered, total["a"].failed, total["a"].durations, total["a"].stages) == (20, 20, {3: 20}, {})
    assert [total[name].failed for name in "bc"] == [20, 20]
    # Beyond the limit, it says so.
    history.add(Frame(1_800_000_070, {("d", "1"): ModelFigures("d", "1", failed=1)}))
    assert not history.budget_frames()[-1].is_whole
    assert history.budget_frames()[-1].model(OTHER_MODELS).failed == 1


def test_gateways_are_bounded() -> None:
    history = History(most_workers=50)
    for at in range(1_800_000_000, 1_800_000_100):
        history.add(Frame(at, gateways={f"g{n}": GatewayFigures(f"g{n}", requests=1) for n in range(10)}))
    assert [len(frame.gateways) for frame in history.frames(6)] == [0, 10, 10, 10, 10, 10]
    assert sum(len(frame.gateways) for frame in history.frames(300)) == 50
    assert not any(frame.gateways for seconds in (3600, 86_400) for frame in history.frames(seconds))


def test_a_model_keeps_its_place_while_others_come_and_go() -> None:
    history = History(most_models=1)
    for at in range(1000, 1400):
        history.add(Frame(at, {(name, "1"): ModelFigures(name, "1", answered=1) for name in ("a", f"x{at}")}))
    assert history.window("a", None, 300).answered == 300
    assert history.models() == [(OTHER_MODELS, ""), ("a", "1")]


def test_a_frame_that_is_not_later_is_left_out() -> None:
    history = History()
    for at in (100, 100, 99, 101):
        history.add(Frame(at, {("a", "1"): ModelFigures("a", "1", answered=1)}))
    assert history.window("a", "1", 300).answered == 2
    assert history.since == 100


def test_resolutions() -> None:
    history = History()
    assert history.latest() is None
    assert history.since is None
    assert list(history.frames(60)) == []
    for at in range(1_800_000_000, 1_800_000_000 + 700):
        history.add(Frame(at, {("a", "1"): ModelFigures("a", "1", answered=1)}))
    assert [frame.seconds for frame in history.frames(300)] == [1] * 300
    assert [frame.seconds for frame in history.frames(600)] == [10] * 60
    assert {frame.seconds for frame in history.frames(86_400)} == {60}
    assert history.window("a", "1", 60).answered == 60
    assert history.window("a", "1", 86_400).answered == 700


@pytest.mark.parametrize(
    ("durations", "share", "expected"),
    [({}, 0.5, 0.0), ({0: 2}, 0.5, 25_000.0), ({1: 99, 20: 1}, 0.5, None), ({len(BUCKET_BOUNDS_NS): 1}, 0.99, 1e10)],
)
def test_percentiles(durations: dict[int, int], share: float, expected: float | None) -> None:
    figures = ModelFigures("m", durations=durations, answered=sum(durations.values()))
    found = figures.percentile_ns(share)
    if expected is None:
        low, high = bucket_bounds_ns(1)
        assert high is not None
        assert low < found <= high
    else:
        assert found == expected


@given(_buckets, st.integers(1, 20_000_000_000))
def test_late_requests_are_those_above_the_bucket_of_the_limit(durations: dict[int, int], limit_ns: int) -> None:
    figures = ModelFigures("m", durations=durations)
    certainly = sum(count for bucket, count in durations.items() if bucket_bounds_ns(bucket)[0] >= limit_ns)
    at_most = sum(count for bucket, count in durations.items() if (bucket_bounds_ns(bucket)[1] or 2**63) > limit_ns)
    assert certainly == figures.late(limit_ns) <= at_most


def test_frames_come_oldest_first() -> None:
    history = History()
    for at in range(50, 60):
        history.add(Frame(at))
    assert [frame.at for frame in history.frames(3)] == [57, 58, 59]
