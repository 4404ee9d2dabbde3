"""Which runtimes are tried again with a precision that helped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.optimize.searching.candidate import OPENVINO, Candidate, Figures, Goal, Outcome, RunSettings
from isochrone.optimize.searching.stages import Offer, Progress, settings_of_helpful_precisions

ONNX = [RunSettings(threads=count) for count in (1, 2, 4)]
VINO = [RunSettings(OPENVINO, count) for count in (1, 2, 4)]
BF16 = [RunSettings(OPENVINO, count, bf16=True) for count in (1, 2, 4)]
OFFER = Offer((*ONNX, *VINO, *BF16), ("slim",), ("int8", "fp16"))
GOAL = Goal(0.001, 0.01)
FLOAT = (Candidate((), ONNX[0]), 10.0)


def figures(milliseconds: float, drop: float = 0.0) -> Figures:
    return Figures(milliseconds, milliseconds * 0.999, milliseconds * 1.001, milliseconds * 2, drop, drop, 100)


def offered(*found: tuple[Candidate, float | None], drop: dict[RunSettings, float] | None = None) -> list[RunSettings]:
    """The settings for int8; a time of None is a failure."""
    outcomes = [
        Outcome(candidate, None if time is None else figures(time, (drop or {}).get(candidate.settings, 0.0)))
        for candidate, time in (FLOAT, *found)
    ]
    candidates = settings_of_helpful_precisions(Progress(OFFER, GOAL, outcomes))
    assert {candidate.transformations for candidate in candidates} <= {("int8",)}
    return [candidate.settings for candidate in candidates]


def int8(settings: RunSettings, time: float | None) -> tuple[Candidate, float | None]:
    return Candidate(("int8",), settings), time


def test_a_runtime_that_was_clearly_slower_with_the_same_file_is_not_tried_again() -> None:
    assert offered(int8(VINO[1], 8.0), int8(ONNX[0], 4.0)) == [*ONNX, *BF16]
    assert offered(int8(VINO[0], 4.0), int8(ONNX[0], 8.0)) == [*VINO, *BF16]


def test_a_slower_runtime_with_fewer_threads_is_tried_again() -> None:
    assert offered(int8(VINO[1], 4.0), int8(ONNX[0], 8.0)) == [*ONNX, *VINO, *BF16]


def test_a_runtime_that_was_slower_within_the_margin_is_tried_again() -> None:
    assert offered(int8(VINO[1], 4.8), int8(ONNX[0], 4.0)) == [*ONNX, *VINO, *BF16]


def test_slower_with_another_file_says_nothing() -> None:
    other = (Candidate(("fp16",), VINO[1]), 40.0)
    assert offered(other, int8(ONNX[0], 4.0)) == [*ONNX, *VINO, *BF16]


@pytest.mark.parametrize("found", [int8(VINO[0], None), int8(VINO[0], 1.0)])
def test_a_runtime_that_failed_or_lost_too_much_is_not_tried_again(found: tuple[Candidate, float | None]) -> None:
    assert offered(found, int8(ONNX[0], 4.0), drop={VINO[0]: 0.5}) == [*ONNX, *BF16]


def test_a_runtime_that_took_twice_as_long_before_the_precision_is_not_tried_with_it() -> None:
    assert offered((Candidate((), VINO[1]), 25.0), int8(ONNX[0], 4.0)) == [*ONNX, *BF16]
    assert offered((Candidate((), VINO[1]), 18.0), int8(ONNX[0], 4.0)) == [*ONNX, *VINO, *BF16]
    # With the precision itself it is not slower, which counts more.
    assert offered((Candidate((), VINO[1]), 25.0), int8(ONNX[0], 4.0), int8(VINO[1], 4.0)) == [*ONNX, *VINO, *BF16]


def test_a_runtime_is_judged_by_its_best_settings() -> None:
    assert offered(int8(ONNX[2], 9.0), int8(ONNX[0], 4.0), int8(VINO[0], 4.0)) == [*ONNX, *VINO, *BF16]


@given(st.dictionaries(st.sampled_from(OFFER.settings), st.one_of(st.none(), st.floats(0.5, 9)), min_size=1))
def test_the_runtime_of_the_fastest_is_tried_again(times: dict[RunSettings, float | None]) -> None:
    measured = {each: time for each, time in times.items() if time is not None}
    settings = offered(*(int8(each, time) for each, time in times.items()))
    if not measured:
        assert not settings
        return
    best = min(measured, key=lambda each: measured[each])
    assert {each for each in OFFER.settings if (each.runtime, each.bf16) == (best.runtime, best.bf16)} <= {*settings}
