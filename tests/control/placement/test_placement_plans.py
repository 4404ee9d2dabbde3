"""Model placement: single situations with the plan that each must have."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from placement_cases import CURVES, memory_of, prefixes

from isochrone.control.placement.needs import BatchCurve, ModelNeeds
from isochrone.control.placement.plan import Plan
from isochrone.control.placement.planning.explanation import explain
from isochrone.control.placement.planning.planner import DEFAULT_RULES, plan_placement
from isochrone.control.placement.planning.rules import PlacementRules
from isochrone.control.placement.planning.units import units_of
from isochrone.control.placement.workers import DRAINING, Replicas, WorkerOffer
from isochrone.errors import InvalidArgument, NotFound


def moves(plan: Plan) -> list[str]:
    return [f"{move.action} {move.model} {move.worker} {move.reason}" for move in plan.moves]


def standing(**models: str) -> dict[str, frozenset[str]]:
    return {model: frozenset(workers.split()) for model, workers in models.items()}


def workers(*memories: int, **settings: object) -> list[WorkerOffer]:
    return [WorkerOffer(f"w{n}", memory=memory, **settings) for n, memory in enumerate(memories)]  # type: ignore[arg-type]


def busy(plan: Plan, needs: list[ModelNeeds], model: str) -> float:
    """Compute of one replica of a model on workers of one kind."""
    (each,) = [need for need in needs if need.name == model]
    assert each.rate is not None
    cost = each.seconds_per_row("cpu", each.budget)
    assert cost is not None
    return each.rate * cost / len(plan.replicas[model])


# Compute.


def test_a_batch_must_leave_time_for_the_run_before_it() -> None:
    curve = BatchCurve(((1, 0.004), (4, 0.008), (16, 0.02)))
    assert curve.seconds_per_row(0.1) == 0.02 / 16
    assert curve.seconds_per_row(0.03) == 0.008 / 4
    assert curve.seconds_per_row(0.005) == 0.004
    assert curve.seconds_per_row(0.003) is None


def test_a_hot_model_gets_replicas_by_its_offered_load() -> None:
    """Nothing is known of queues: the rate alone decides, before any request waits."""
    needs = [ModelNeeds("hot", 1, rate=50.0, curves={"cpu": BatchCurve(((1, 0.01),))})]
    plan = plan_placement(needs, workers(10, 10, 10, 10), {})
    assert len(plan.replicas["hot"]) == 1
    hotter = [replace(needs[0], rate=200.0)]
    after = plan_placement(hotter, workers(10, 10, 10, 10), plan.replicas)
    assert [move.reason for move in after.moves] == ["hot", "hot"]
    assert busy(after, hotter, "hot") <= 0.7
    assert not after.short


def test_a_growing_load_never_reaches_what_the_replicas_can_take() -> None:
    """By a tenth at a time: each replica is added while those before it still have compute to spare."""
    needs = ModelNeeds("m", 1, rate=10.0, curves={"cpu": BatchCurve(((1, 0.01),))})
    offers, replicas = workers(*[10] * 20), standing(m="w0")
    while needs.rate is not None and needs.rate < 1200:
        needs = replace(needs, rate=needs.rate * 1.1)
        before = busy(Plan(replicas), [needs], "m")
        replicas = dict(plan_placement([needs], offers, replicas).replicas)
        assert before < 0.8
        assert busy(Plan(replicas), [needs], "m") <= 0.7
    assert len(replicas["m"]) == 19


def test_many_replicas_with_little_load_go_where_few_with_much_cannot() -> None:
    base = [ModelNeeds(f"base{n}", 1, rate=40.0, curves=CURVES, budget=0.01) for n in range(6)]
    needs = [*base, ModelNeeds("hot", 1, rate=100.0, curves=CURVES, budget=0.01)]
    plan = plan_placement(needs, workers(*[10] * 6), {})
    # One run takes 10 ms: each base model 40 % of its worker, the hot one 100 %. Two replicas would not fit anywhere.
    assert len(plan.replicas["hot"]) >= 4
    assert not plan.short


def test_a_cold_model_is_given_back_from_the_farthest_worker() -> None:
    near, far = WorkerOffer("near", 10, round_trip=0.0002), WorkerOffer("far", 10, round_trip=0.02)
    needs = [ModelNeeds("cold", 1, rate=1.0, curves=CURVES)]
    plan = plan_placement(needs, [far, near], standing(cold="near far"))
    assert moves(plan) == ["remove cold far cold"]


def test_a_model_without_a_measured_rate_keeps_its_replicas() -> None:
    plan = plan_placement([ModelNeeds("m", 1)], workers(10, 10, 10), standing(m="w0 w1 w2"))
    assert not plan.moves


def test_a_rate_that_varies_by_a_fifth_moves_nothing() -> None:
    needs = ModelNeeds("m", 1, rate=120.0, curves=CURVES, budget=0.01)
    offers = workers(10, 10, 10, 10)
    replicas = plan_placement([needs], offers, {}).replicas
    for rate in (100.0, 130.0, 110.0, 139.0, 101.0):
        assert not plan_placement([replace(needs, rate=rate)], offers, replicas).moves


def test_a_worker_that_is_too_busy_gives_the_smallest_sufficient_load_away() -> None:
    needs = [ModelNeeds(f"m{n}", 1, rate=rate, curves=CURVES, budget=0.01) for n, rate in enumerate((45, 20, 15))]
    plan = plan_placement(needs, workers(10, 10), standing(m0="w0", m1="w0", m2="w0"))
    assert moves(plan) == ["add m2 w1 overload", "remove m2 w0 overload"]


def test_without_enough_compute_a_model_is_served_and_reported() -> None:
    needs = [ModelNeeds("m", 1, rate=500.0, curves=CURVES, budget=0.01)]
    plan = plan_placement(needs, workers(10), {})
    assert plan.replicas["m"] == {"w0"}
    assert not plan.unplaced
    assert "busy 500%" in plan.short["m"]


def test_a_replica_moves_for_balance_only_beyond_the_margin() -> None:
    needs = [ModelNeeds(f"m{n}", 1, rate=15.0, curves=CURVES, budget=0.01) for n in range(4)]
    crowded = standing(m0="w0", m1="w0", m2="w0", m3="w1")
    # 45 % and 15 %: one move would leave 30 % on both, which is not lower than 45 % by a quarter of the compute.
    assert not plan_placement(needs, workers(10, 10), crowded).moves
    plan = plan_placement(needs, workers(10, 10), crowded, PlacementRules(margin=0.1))
    assert [move.reason for move in plan.moves] == ["balance", "balance"]
    assert [move.action for move in plan.moves] == ["add", "remove"]


# Memory.


def test_room_is_made_for_a_large_model_with_one_move() -> None:
    needs = [ModelNeeds("large", 16), *(ModelNeeds(f"m{n}", size) for n, size in enumerate((5, 2, 3)))]
    plan = plan_placement(needs, workers(20, 12), standing(m0="w0", m1="w1", m2="w1"))
    assert moves(plan) == ["add m0 w1 room", "remove m0 w0 room", "add large w0 restore"]
    tighter = plan_placement(needs, workers(20, 9), standing(m0="w0", m1="w1", m2="w1"))
    assert not tighter.moves
    assert set(tighter.unplaced) == {"large"}


def test_a_model_that_fits_nowhere_says_how_much_is_missing() -> None:
    gib = 2**30
    needs = [ModelNeeds("large", 12 * gib), ModelNeeds("other", 4 * gib, pools=("a",))]
    offers = [WorkerOffer("w0", 8 * gib, pool="a"), WorkerOffer("w1", 10 * gib, pool="b")]
    plan = plan_placement(needs, offers, {})
    assert plan.unplaced == {
        "large": "no allowed worker has 12.0 GiB free: the most is 10.0 GiB of 10.0 GiB on w1, 2.0 GiB short"
    }
    assert plan.replicas == {"other": frozenset({"w0"})}


def test_room_for_the_largest_rollout_is_kept_where_it_can_be() -> None:
    needs = [ModelNeeds("a", 4), ModelNeeds("b", 4)]
    plan = plan_placement(needs, workers(10, 10), {})
    # Both on one worker would leave no room for a second version of either.
    assert plan.replicas["a"] != plan.replicas["b"]
    assert not plan.without_room
    tight = plan_placement(needs, workers(10), {})
    assert not tight.unplaced
    assert tight.without_room == ("w0",)


def test_models_that_change_together_need_room_for_both() -> None:
    needs = [ModelNeeds("a", 3, changes_with=("b",)), ModelNeeds("b", 3)]
    assert plan_placement(needs, workers(12), {}).without_room == ()
    assert plan_placement(needs, workers(11), {}).without_room == ("w0",)
    alone = [replace(needs[0], changes_with=()), needs[1]]
    assert plan_placement(alone, workers(9), {}).without_room == ()


def test_a_rollout_under_way_counts_in_full_and_moves_others_first() -> None:
    needs = [ModelNeeds("a", 6, incoming=7), ModelNeeds("b", 2)]
    plan = plan_placement(needs, workers(14, 6), standing(a="w0", b="w0"))
    assert moves(plan) == ["add b w1 memory", "remove b w0 memory"]


def test_when_memory_shrinks_a_model_with_other_replicas_goes_first() -> None:
    needs = [ModelNeeds("many", 5, rate=1.0), ModelNeeds("single", 5, rate=0.5)]
    offers = [WorkerOffer("w0", 6), WorkerOffer("w1", 5)]
    plan = plan_placement(needs, offers, standing(many="w0 w1", single="w0"))
    assert moves(plan) == ["remove many w0 memory"]
    assert not plan.unplaced


def test_when_nothing_can_take_it_the_least_used_model_is_unloaded_and_reported() -> None:
    needs = [ModelNeeds("busy", 5, rate=9.0), ModelNeeds("quiet", 5, rate=1.0)]
    plan = plan_placement(needs, workers(8), standing(busy="w0", quiet="w0"))
    assert moves(plan) == ["remove quiet w0 memory"]
    assert set(plan.unplaced) == {"quiet"}


def test_a_retired_model_is_unloaded_before_anything_is_loaded() -> None:
    plan = plan_placement([ModelNeeds("new", 8)], workers(10), standing(old="w0"))
    assert moves(plan) == ["remove old w0 retired", "add new w0 restore"]


# Rules.


def test_a_draining_worker_gives_its_models_away_and_the_load_comes_first() -> None:
    offers = [WorkerOffer("w0", 10, state=DRAINING), WorkerOffer("w1", 10)]
    plan = plan_placement([ModelNeeds("m", 3)], offers, standing(m="w0"))
    assert moves(plan) == ["add m w1 rule", "remove m w0 rule"]


def test_the_last_replica_stays_on_a_draining_worker_while_no_other_has_room() -> None:
    offers = [WorkerOffer("w0", 10, state=DRAINING), WorkerOffer("w1", 2)]
    plan = plan_placement([ModelNeeds("m", 3)], offers, standing(m="w0"))
    assert not plan.moves
    assert plan.short["m"] == "it is on w0 against the rule draining: it drains"


def test_the_preferred_tier_is_filled_first() -> None:
    offers = [WorkerOffer("a-core", 10, tier="core"), WorkerOffer("b-edge", 10, tier="edge"), WorkerOffer("c", 10)]
    needs = [ModelNeeds(f"m{n}", 4, tiers=("edge", "core")) for n in range(4)]
    plan = plan_placement(needs, offers, {})
    assert {name for names in plan.replicas.values() for name in names} == {"a-core", "b-edge"}
    assert plan.replicas["m0"] == {"b-edge"}


def test_a_worker_too_far_for_the_deadline_is_not_used_and_one_that_moved_away_is_left() -> None:
    needs = [ModelNeeds("m", 1, curves=CURVES, budget=0.02)]
    offers = [WorkerOffer("a", 10, round_trip=0.011), WorkerOffer("b", 10, round_trip=0.009)]
    plan = plan_placement(needs, offers, {})
    assert plan.replicas["m"] == {"b"}
    farther = [replace(offers[0], round_trip=0.001), replace(offers[1], round_trip=0.015)]
    assert moves(plan_placement(needs, farther, plan.replicas)) == ["add m a rule", "remove m b rule"]


def test_an_isolated_model_empties_a_worker_if_none_is_empty() -> None:
    needs = [ModelNeeds("a", 2), ModelNeeds("b", 2), ModelNeeds("alone", 2, isolated=True)]
    before = standing(a="w0", b="w1")
    plan = plan_placement(needs, workers(10, 10), before)
    assert not plan.unplaced
    (home,) = plan.replicas["alone"]
    assert [model for model, names in plan.replicas.items() if home in names] == ["alone"]
    assert len(plan.moves) == 3
    for state in prefixes(plan, before, workers(10, 10)):
        assert all(state[model] for model in ("a", "b"))


def test_an_ensemble_and_its_stages_are_on_the_same_workers() -> None:
    needs = [
        ModelNeeds("pipe", 0, together=("pre", "post"), min_replicas=2),
        ModelNeeds("pre", 2),
        ModelNeeds("post", 3),
    ]
    plan = plan_placement(needs, workers(4, 20, 20), {})
    assert plan.replicas["pipe"] == plan.replicas["pre"] == plan.replicas["post"] == {"w1", "w2"}
    # Stages are loaded before the ensemble that runs them.
    assert [move.model for move in plan.moves][:3] == ["post", "pre", "pipe"]


def test_an_ensemble_is_completed_where_most_of_it_is() -> None:
    needs = [ModelNeeds("pipe", 1, rate=1.0, together=("pre",)), ModelNeeds("pre", 8)]
    plan = plan_placement(needs, workers(30, 30), standing(pipe="w0", pre="w1"))
    assert moves(plan) == ["add pipe w1 restore", "remove pipe w0 rule"]


def test_a_stage_that_may_have_callers_of_its_own_stays_where_its_ensemble_is_not() -> None:
    needs = [ModelNeeds("pipe", 1, together=("pre",), pools=("core",)), ModelNeeds("pre", 8)]
    offers = [WorkerOffer("w0", 30, pool="core"), WorkerOffer("w1", 30, pool="edge")]
    plan = plan_placement(needs, offers, standing(pipe="w0", pre="w0 w1"))
    assert not plan.moves
    found = explain("pre", needs, offers, plan.replicas, DEFAULT_RULES)
    verdicts = {each.worker: (each.has, each.rule, each.detail) for each in found.workers}
    assert verdicts["w1"] == (True, "together", "it has pre without pipe")


def test_replicas_that_must_be_apart_never_share_a_machine() -> None:
    offers = [WorkerOffer(f"w{n}", 10, machine=f"machine{n // 2}") for n in range(4)]
    plan = plan_placement([ModelNeeds("m", 1, apart=True, min_replicas=3)], offers, {})
    assert len(plan.replicas["m"]) == 2
    assert "2 of 3 replicas" in plan.short["m"]
    assert "on the same machine" in plan.short["m"]
    assert "no other worker may have m: 2 by apart (w1: w0 on the same machine has it)" in plan.short["m"]


def test_no_worker_is_an_obstacle_to_itself() -> None:
    needs = [ModelNeeds("m", 1, apart=True, min_replicas=2)]
    found = explain("m", needs, [WorkerOffer("w0", 10, machine="one")], standing(m="w0"), DEFAULT_RULES)
    assert found.missing == "it has 1 of 2 replicas: every worker has it"
    offers = [WorkerOffer("w0", 10, machine="one"), WorkerOffer("w1", 10, machine="two")]
    found = explain("m", needs, offers, standing(m="w0"), DEFAULT_RULES)
    assert found.missing == "it has 1 of 2 replicas: a plan would place another"


def test_a_worker_that_could_not_load_a_model_is_not_asked_again() -> None:
    offers = [WorkerOffer("w0", 10, rejected=frozenset({"m"})), WorkerOffer("w1", 10)]
    assert plan_placement([ModelNeeds("m", 1)], offers, {}).replicas["m"] == {"w1"}


# Explanations.


def test_an_explanation_names_the_first_rule_of_each_worker() -> None:
    gib = 2**30
    needs = [
        ModelNeeds(
            "m", 2 * gib, rate=30.0, curves=CURVES, budget=0.05, pools=("a",), tiers=("edge",), devices=("cpu",)
        ),
        ModelNeeds("alone", gib, isolated=True),
        ModelNeeds("big", 7 * gib),
        ModelNeeds("heavy", gib, rate=100.0, curves=CURVES),
    ]
    common = {"pool": "a", "tier": "edge", "memory": 8 * gib}
    offers = [
        WorkerOffer("home", **common),  # type: ignore[arg-type]
        WorkerOffer("pool", pool="b", tier="edge", memory=8 * gib),
        WorkerOffer("tier", pool="a", tier="core", memory=8 * gib),
        WorkerOffer("device", device="gpu", **common),  # type: ignore[arg-type]
        WorkerOffer("far", round_trip=0.045, **common),  # type: ignore[arg-type]
        WorkerOffer("failed", rejected=frozenset({"m"}), **common),  # type: ignore[arg-type]
        WorkerOffer("taken", **common),  # type: ignore[arg-type]
        WorkerOffer("full", **common),  # type: ignore[arg-type]
        WorkerOffer("slow", **common),  # type: ignore[arg-type]
        WorkerOffer("tight", pool="a", tier="edge", memory=3 * gib),
        WorkerOffer("free", **common),  # type: ignore[arg-type]
        WorkerOffer("leaving", state=DRAINING, **common),  # type: ignore[arg-type]
        WorkerOffer("gone", state="lost", **common),  # type: ignore[arg-type]
    ]
    replicas: Replicas = standing(m="home", alone="taken", big="full", heavy="slow")
    found = explain("m", needs, offers, replicas, DEFAULT_RULES)
    rules = {verdict.worker: verdict.rule for verdict in found.workers}
    assert rules == {
        "home": "",
        "pool": "pool",
        "tier": "tier",
        "device": "device",
        "far": "latency",
        "failed": "load failure",
        "taken": "isolation",
        "full": "memory",
        "slow": "compute",
        "tight": "rollout room",
        "free": "",
        "leaving": "draining",
        "gone": "lost",
    }
    details = {verdict.worker: verdict.detail for verdict in found.workers}
    assert details["full"] == "1.0 GiB of 8.0 GiB are free; 2.0 GiB are needed"
    assert details["home"] == "it takes 2.0 GiB and 30% of the time"
    assert details["free"] == "it could have it; 1 is enough"
    assert (found.workers[0].worker, found.missing) == ("home", "")


def test_an_unknown_model_cannot_be_explained() -> None:
    with pytest.raises(NotFound, match="model 'x': expected one of the known models m"):
        explain("x", [ModelNeeds("m")], workers(1), {}, DEFAULT_RULES)


# Input.


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": math.nan},
        {"rate": -1.0},
        {"memory": -1},
        {"min_replicas": 3, "max_replicas": 2},
        {"instances": 0},
    ],
)
def test_needs_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        ModelNeeds("m", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("points", [(), ((0, 0.1),), ((2, 0.1), (1, 0.2)), ((1, 0.0),), ((1, math.inf),)])
def test_curves_that_make_no_sense_are_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(InvalidArgument):
        BatchCurve(points)


def test_a_circle_of_stages_is_one_unit() -> None:
    (unit,) = units_of([ModelNeeds("a", 1, together=("b",)), ModelNeeds("b", 2, together=("a", "missing"))])
    assert sorted(unit.names) == ["a", "b"]
    assert memory_of({"a": ["w"], "b": ["w"]}, unit.members, "w") == unit.bytes == 3


def test_no_worker_at_all() -> None:
    assert plan_placement([ModelNeeds("m")], [], {}).unplaced == {"m": "no worker is serving"}
    assert plan_placement([], workers(10), {}) == Plan({})
