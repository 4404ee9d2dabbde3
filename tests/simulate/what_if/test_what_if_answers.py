"""Answers: what must hold whatever the fleet is, against queueing theory, within a budget of time."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from what_if_situations import ENDLESS, a_model, a_situation

from isochrone.control.what_if.answers import BREAKS, HOLDS, WORSE, WhatIfAnswer
from isochrone.control.what_if.situation import MeasuredModel, Situation, SituationModel, SituationWorker
from isochrone.errors import InvalidArgument, Unavailable
from isochrone.simulate.what_if.answering import Budget, answer
from isochrone.simulate.what_if.curves import batch_times
from isochrone.simulate.what_if.simulation import Simulation

FEW = settings(max_examples=5, deadline=None)


def asked(situation: Situation, *questions: str, seed: int = 1, seconds: float = 4.0) -> WhatIfAnswer:
    return answer(situation, questions, seed, seconds, ENDLESS)


@FEW
@given(
    rate=st.floats(5, 600),
    workers=st.integers(1, 4),
    policy=st.sampled_from(["round_robin", "prequal", "power_of_two", "weighted_round_robin"]),
    deadline_ms=st.sampled_from([0.0, 3.0, 50.0]),
    seed=st.integers(0, 99),
)
def test_what_changes_nothing_gives_the_figures_of_today(
    rate: float, workers: int, policy: str, deadline_ms: float, seed: int
) -> None:
    situation = a_situation(workers, a_model(rate=rate, deadline_ms=deadline_ms), policy=policy)
    found = asked(situation, "load=1", seed=seed, seconds=1.0)
    assert [each.today for each in found.models] == [each.then for each in found.models]
    assert [each.today for each in found.workers] == [each.then for each in found.workers]


@FEW
@given(factor=st.floats(1.2, 8.0), run_ms=st.floats(0.5, 10), rows=st.sampled_from([1, 8]), seed=st.integers(0, 99))
def test_more_load_never_lowers_utilisation(factor: float, run_ms: float, rows: int, seed: int) -> None:
    situation = a_situation(2, a_model(rate=150.0, run_ms=run_ms, max_rows=rows))
    found = asked(situation, f"load={factor}", seed=seed, seconds=3.0).models[0]
    assert found.then.utilisation >= found.today.utilisation - 0.02


@FEW
@given(
    seed=st.integers(0, 99), question=st.sampled_from(["load=3", "lose=w1", "lose=w1,w2", "add=pool:1", "policy=p2c"])
)
def test_every_request_has_one_outcome_and_the_same_seed_gives_the_same_bytes(seed: int, question: str) -> None:
    situation = a_situation(2, a_model(rate=400.0, deadline_ms=20.0), a_model("small", 50.0, 1.0))
    first, second = (msgspec.json.encode(asked(situation, question, seed=seed, seconds=1.0)) for _ in range(2))
    assert first == second
    for model in msgspec.json.decode(first, type=WhatIfAnswer).models:
        for outcome in (model.today, model.then):
            lost = outcome.missed + outcome.rejected + outcome.failed
            assert outcome.goodput == pytest.approx(outcome.rate * (1 - lost), rel=1e-3, abs=0.01)


def test_another_seed_gives_other_figures() -> None:
    situation = a_situation(1, a_model(rate=400.0))
    assert asked(situation, "load=1", seed=1).models != asked(situation, "load=1", seed=2).models


@pytest.mark.parametrize("load", [0.4, 0.7])
def test_waits_are_those_of_an_m_d_1_queue(load: float) -> None:
    """Poisson arrivals, constant runs, one instance: the mean wait is load * run / (2 * (1 - load)) (Pollaczek-
    Khinchine)."""
    run_ms = 5.0
    worker = SituationWorker("w1", ("detector",), "pool", way_ms=0.0)
    rules = {"defaults": {"policy": "round_robin"}}
    situation = Situation((a_model(rate=load * 1000 / run_ms, run_ms=run_ms),), (worker,), rules=rules)
    simulation = Simulation(situation, 1, 60.0, lambda: False)
    simulation.run()
    found = simulation.of_model("detector")
    assert found.mean_ms - run_ms == pytest.approx(load * run_ms / (2 * (1 - load)), rel=0.1)
    assert found.utilisation == pytest.approx(load, rel=0.03)


def test_batches_and_instances_are_those_of_the_model() -> None:
    points = ((1, 2.0), (8, 4.0))
    batching = SituationModel("detector", 900.0, {"": points}, max_rows=8)
    alone = SituationModel("detector", 900.0, {"": ((1, 2.0),)})
    several = SituationModel("detector", 900.0, {"": ((1, 2.0),)}, instances=3)
    found = {
        name: asked(a_situation(1, model), "load=1", seconds=2.0).models[0].today
        for name, model in (("batching", batching), ("alone", alone), ("several", several))
    }
    assert found["alone"].utilisation > 0.99
    assert found["batching"].p50_ms < 10 < 50 < found["alone"].p50_ms
    assert found["several"].utilisation == pytest.approx(0.6, abs=0.05)


def test_a_slow_worker_and_a_far_one_are_simulated_as_they_are() -> None:
    near = SituationWorker("near", ("detector",), "pool", way_ms=0.0)
    slow = SituationWorker("slow", ("detector",), "pool", way_ms=0.0, speeds={"detector": 0.25})
    far = SituationWorker("far", ("detector",), "pool", way_ms=5.0)
    found = {
        each.name: asked(Situation((a_model(rate=20.0),), (each,)), "load=1").models[0].today.p50_ms
        for each in (near, slow, far)
    }
    assert found["near"] == pytest.approx(2.0, rel=0.05)
    assert found["slow"] == pytest.approx(8.0, rel=0.05)
    assert found["far"] == pytest.approx(12.0, rel=0.05)


def test_curves_of_devices_count_for_their_workers() -> None:
    model = SituationModel("detector", 20.0, {"cpu": ((1, 8.0),), "gpu": ((1, 1.0),)})
    workers = [SituationWorker(name, ("detector",), device=name, way_ms=0.0) for name in ("cpu", "gpu", "tpu")]
    p50 = [asked(Situation((model,), (each,)), "load=1").models[0].today.p50_ms for each in workers]
    # A kind that was not measured counts as the slowest one.
    assert p50 == pytest.approx([8.0, 1.0, 8.0], rel=0.05)


def test_models_are_on_the_workers_that_have_them() -> None:
    models = a_model("a", 100.0), a_model("b", 100.0)
    workers = SituationWorker("w1", ("a",)), SituationWorker("w2", ("a", "b")), SituationWorker("idle", ())
    found = asked(Situation(models, workers), "lose=w2")
    a, b = found.models
    assert (a.today.workers, a.then.workers, b.today.workers, b.then.workers) == (2, 1, 1, 0)
    assert (a.then.failed, b.then.failed) == (0.0, 1.0)
    assert found.verdict == BREAKS
    assert found.sentences[0] == "b: no worker serves it any more, so all of its requests fail"
    assert [each.name for each in found.workers if each.today is None and each.then is None] == ["idle"]


def test_tiers_of_the_rules_are_followed() -> None:
    """The near tier takes what it can; the far one gets requests when the near one is gone."""
    near = SituationWorker("near", ("detector",), tier="edge", way_ms=0.1)
    far = SituationWorker("far", ("detector",), tier="core", way_ms=10.0)
    rules = {"defaults": {"tiers": ["edge", "core"], "deadline_ms": 100}}
    found = asked(Situation((a_model(rate=50.0, deadline_ms=100.0),), (near, far), rules=rules), "lose=near")
    (model,), by_name = found.models, {each.name: each for each in found.workers}
    assert by_name["far"].today is not None
    assert by_name["far"].today.rate == 0
    assert model.today.p50_ms < 5 < 20 < model.then.p50_ms


def test_verdicts_say_what_breaks_what_gets_worse_and_what_holds() -> None:
    situation = a_situation(2, a_model(rate=300.0, deadline_ms=40.0))
    broken = asked(situation, "load=10", seconds=1.0)
    assert broken.verdict == BREAKS
    assert "more than the 1,000 that its workers can do" in broken.sentences[0]
    assert "there is no room left" in broken.sentences[-1]
    worse = asked(situation, "load=3")
    assert worse.verdict == WORSE
    assert worse.sentences[0].startswith("detector: p99 goes from")
    assert asked(situation, "add=pool:1").verdict == HOLDS
    # Not so long that circuit breakers limit the requests in flight.
    endless = asked(a_situation(1, a_model(rate=300.0)), "load=3", seconds=1.0)
    assert "its queues grow without end" in endless.sentences[0]


def test_what_was_measured_stands_beside_the_simulation_of_today() -> None:
    near, far = MeasuredModel(2.1, 4.0), MeasuredModel(20.0, 90.0)
    found = asked(
        a_situation(2, a_model("a", 50.0, measured=near), a_model("b", 50.0, measured=far), a_model("c", 50.0)),
        "load=2",
    )
    assert [model.measured for model in found.models] == [near, far, None]
    said = [text.rpartition(": ")[2] for text in found.trust]
    assert said[1] == "take the change as a trend, not the figures"
    assert said[2] == "nothing was measured to compare the simulation with"


# Time.


class Ticking:
    """A clock that advances by a step whenever it is read."""

    def __init__(self, step: float) -> None:
        self._steps = itertools.count()
        self._step = step

    def __call__(self) -> float:
        return next(self._steps) * self._step


def test_the_more_time_there_is_the_longer_the_simulation_and_its_length_gives_the_same_answer() -> None:
    situation = a_situation(2, a_model(rate=1000.0, run_ms=0.5), policy="round_robin")
    found = [answer(situation, ["load=2"], 1, None, Budget(Ticking(0.02), budget)) for budget in (0.1, 1.0)]
    assert found[0].simulated_seconds < found[1].simulated_seconds
    for each in found:
        assert asked(situation, "load=2", seconds=each.simulated_seconds) == each


def test_a_budget_that_does_not_suffice_is_an_error() -> None:
    with pytest.raises(Unavailable, match=r"not simulated within 0\.001 s"):
        answer(a_situation(2, a_model(rate=1000.0)), ["load=2"], 1, None, Budget(Ticking(0.1), 0.001))


def test_a_fleet_without_load_cannot_be_simulated() -> None:
    with pytest.raises(InvalidArgument, match="no model of the fleet can be simulated"):
        asked(Situation((), (SituationWorker("w1", ()),), left_out={"detector": "it had no requests"}), "load=2")


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
def test_lengths_that_make_no_sense_are_rejected(seconds: float) -> None:
    with pytest.raises(InvalidArgument, match="expected a length"):
        asked(a_situation(), "load=2", seconds=seconds)


@pytest.mark.parametrize("questions", [["load=1000"] * 3, ["load=1000"] * 32])
@pytest.mark.parametrize("seconds", [None, 0.001])
def test_loads_whose_arrivals_would_take_all_memory_are_rejected(questions: list[str], seconds: float | None) -> None:
    with pytest.raises(InvalidArgument, match=r"load: expected at most 40,000,000 requests/s"):
        answer(a_situation(), questions, 1, seconds, ENDLESS)


def test_lengths_with_too_many_arrivals_are_rejected_with_the_longest() -> None:
    with pytest.raises(InvalidArgument, match=r"above 0 and up to 1000 \(400000 requests, 400 in a second\)"):
        asked(a_situation(), "load=2", seconds=1001.0)


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        (a_situation(), "at most 10000 workers, .* given 11002"),
        (a_situation(1, *(a_model(f"m{number}", 1.0) for number in range(20))), "at most 100000 models on all workers"),
    ],
)
def test_a_changed_fleet_that_is_too_large_is_rejected(situation: Situation, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=f"the changed fleet: expected {expected}"):
        asked(situation, *["add=pool:1000"] * (11 if len(situation.models) == 1 else 6))


# Curves.


@given(st.dictionaries(st.integers(1, 64), st.floats(0.01, 100), min_size=1, max_size=6), st.integers(1, 128))
def test_times_grow_with_rows_and_are_the_measured_ones(points: dict[int, float], max_rows: int) -> None:
    given_points: Any = sorted(points.items())
    times = batch_times(given_points, max_rows)
    assert len(times) == max_rows + 1
    assert all(later >= earlier - 1e-6 for earlier, later in itertools.pairwise(times[1:]))
    first, milliseconds = given_points[0]
    if first <= max_rows:
        assert times[first] == pytest.approx(milliseconds * 1e6)


def test_one_measured_size_says_nothing_about_what_larger_batches_save() -> None:
    assert batch_times([(2, 3.0)], 4) == pytest.approx([3e6, 3e6, 3e6, 4.5e6, 6e6])
    assert batch_times([(1, 1.0), (3, 2.0)], 5)[1:] == pytest.approx([1e6, 1.5e6, 2e6, 2.5e6, 3e6])
