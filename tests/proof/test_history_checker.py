"""The checker itself: silent on what a correct fleet can show, loud on each way of breaking a promise."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from simulated_fleet import PIPELINES, STAGES, simulate

from bench.control import checker
from bench.control.checker import FAST, STRICT, Commit, check, undecidable
from bench.control.history import ERROR, LOST, OK, Answer

_SEEDS = st.integers(0, 2**32)


def _answer(version: str, started: int, ended: int, model: str = "solo", gateway: str = "gw1") -> Answer:
    return Answer("c1", gateway, model, started, ended, version)


def _commits(*versions: str, cutover: str = STRICT, every: int = 1000) -> list[Commit]:
    """One model, a commit asked for every so often."""
    return [Commit(n + 1, {"solo": v}, cutover, asked_ns=n * every) for n, v in enumerate(versions)]


def _kinds(history: list[Answer], commits: list[Commit]) -> list[str]:
    return [violation.kind for violation in check(history, commits, PIPELINES)]


@given(_SEEDS)
def test_a_correct_fleet_is_never_blamed(seed: int) -> None:
    run = simulate(seed)
    assert check(run.history, run.commits, PIPELINES) == []


@given(_SEEDS)
def test_an_answer_that_went_back_is_found(seed: int) -> None:
    run = simulate(seed)
    hidden = undecidable(run.commits, PIPELINES)
    strict = [
        place
        for place, commit in enumerate(run.commits)
        if commit.cutover == STRICT
        and commit.epoch not in hidden
        and commit.versions["solo"] != run.commits[place - 1].versions["solo"]
    ]
    assume(strict)
    place = random.Random(seed).choice(strict)
    new, old = run.commits[place].versions["solo"], run.commits[place - 1].versions["solo"]
    # Both before anybody asked for the commit after it, which could explain the old version again.
    first = run.instants[place]
    witness = _answer(new, first, first + 1)
    stale = _answer(old, first + 2, first + 3, gateway="gw2")
    assume(place + 1 == len(run.commits) or first + 3 < run.commits[place + 1].asked_ns)
    found = check([*run.history, witness, stale], run.commits, PIPELINES)
    assert [violation.kind for violation in found] == [checker.WENT_BACK]
    assert found[0].answers[0] == stale
    assert all(proof.ended_ns < stale.started_ns for proof in found[0].answers[1:])


@given(_SEEDS, st.sampled_from(STAGES))
def test_mixed_stages_are_found(seed: int, stage: str) -> None:
    run = simulate(seed)
    together = {tuple(commit.versions[name] for name in ("chain", *STAGES)) for commit in run.commits}
    chains = [a for a in run.history if a.model == "chain" and a.outcome == OK]
    assume(chains)
    victim = random.Random(seed).choice(chains)
    seen = {commit.versions[stage] for commit in run.commits}
    for version in sorted(seen):
        stages = {**dict(victim.stages), stage: version}
        if (victim.version, *(stages[name] for name in STAGES)) in together:
            continue
        mixed = msgspec.structs.replace(victim, stages=tuple((name, stages[name]) for name in STAGES))
        history = [mixed if answer is victim else answer for answer in run.history]
        found = check(history, run.commits, PIPELINES)
        assert [violation.kind for violation in found] == [checker.MIXED]
        assert found[0].answers == (mixed,)


@given(_SEEDS)
def test_a_request_without_an_outcome_is_found(seed: int) -> None:
    run = simulate(seed)
    number = random.Random(seed).randrange(len(run.history))
    history = list(run.history)
    history[number] = msgspec.structs.replace(history[number], outcome=LOST, version="", stages=())
    assert _kinds(history, run.commits) == [checker.UNANSWERED]


@given(_SEEDS)
def test_a_version_that_was_aborted_is_found(seed: int) -> None:
    run = simulate(seed)
    number = next((n for n, answer in enumerate(run.history) if answer.model == "solo" and answer.outcome == OK), None)
    assume(number is not None)
    assert number is not None
    history = list(run.history)
    history[number] = msgspec.structs.replace(history[number], version="9", stages=())
    assert _kinds(history, run.commits) == [checker.UNCOMMITTED]


_REQUESTS = st.lists(
    st.tuples(st.sampled_from(["x", "y"]), st.sampled_from("12"), st.integers(1, 60), st.integers(0, 20)),
    min_size=1,
    max_size=5,
)
_COMMITS = st.lists(
    st.tuples(
        st.sampled_from("12"),
        st.sampled_from("12"),
        st.sampled_from([FAST, STRICT]),
        st.integers(0, 20),
        st.none() | st.integers(0, 10),
    ),
    min_size=1,
    max_size=4,
)


@given(_REQUESTS, _COMMITS)
def test_it_agrees_with_trying_every_assignment(
    requests: list[tuple[str, str, int, int]], steps: list[tuple[str, str, str, int, int | None]]
) -> None:
    commits, now = [], 0
    for number, (x, y, cutover, wait, settles) in enumerate(steps):
        asked = now + wait if number else 0
        settled = None if settles is None else asked + settles
        commits.append(Commit(number + 1, {"x": x, "y": y}, cutover, asked_ns=asked, settled_ns=settled))
        now = asked
    history = [
        Answer(f"c{n}", "gw", model, at, at + lasting, version)
        for n, (model, version, at, lasting) in enumerate(requests)
    ]
    assert (check(history, commits) == []) == _some_assignment_fits(history, commits)


def _some_assignment_fits(history: list[Answer], commits: list[Commit]) -> bool:
    """The definition, without any cleverness."""
    changes = [
        {m for m in ("x", "y") if place and commits[place - 1].versions[m] != commit.versions[m]}
        if commit.cutover == STRICT
        else set()
        for place, commit in enumerate(commits)
    ]

    def fits(places: tuple[int, ...]) -> bool:
        for answer, place in zip(history, places, strict=True):
            if commits[place].versions[answer.model] != answer.version or commits[place].asked_ns > answer.ended_ns:
                return False
            for strict, changed in enumerate(changes):
                settled = commits[strict].settled_ns
                if answer.model in changed and place < strict and settled is not None and settled < answer.started_ns:
                    return False
            for earlier, its_place in zip(history, places, strict=True):
                if earlier.ended_ns < answer.started_ns and any(
                    {earlier.model, answer.model} <= changed and its_place >= strict > place
                    for strict, changed in enumerate(changes)
                ):
                    return False
        return True

    return any(fits(places) for places in itertools.product(range(len(commits)), repeat=len(history)))


def test_strict_forbids_the_old_version_after_the_new_was_received() -> None:
    commits = _commits("1", "2")
    new, old = _answer("2", 1100, 1110), _answer("1", 1111, 1120, gateway="gw2")
    (violation,) = check([old, new], commits)
    assert violation.kind == checker.WENT_BACK
    assert violation.answers == (old, new)
    assert "through gw2" in str(violation)
    assert "epoch 2" in str(violation)
    # Side by side, either may be first.
    assert check([new, _answer("1", 1109, 1120)], commits) == []


def test_fast_allows_it() -> None:
    assert check([_answer("2", 1100, 1110), _answer("1", 1111, 1120)], _commits("1", "2", cutover=FAST)) == []


def test_a_version_that_comes_back_later_does_not_excuse_an_answer_before() -> None:
    commits = _commits("1", "2", "1", "2")
    went_back = [_answer("2", 1100, 1110), _answer("1", 1200, 1210)]
    assert [violation.kind for violation in check(went_back, commits)] == [checker.WENT_BACK]
    in_time = [_answer("2", 1100, 1110), _answer("1", 2200, 2210), _answer("2", 3100, 3110)]
    assert check(in_time, commits) == []


def test_nothing_is_seen_before_it_was_asked_for() -> None:
    for cutover in (FAST, STRICT):
        (violation,) = check([_answer("2", 900, 990)], _commits("1", "2", cutover=cutover))
        assert violation.kind == checker.TOO_EARLY


def test_a_commit_known_to_be_done_binds_without_any_answer() -> None:
    commits = [Commit(1, {"solo": "1"}), Commit(2, {"solo": "2"}, STRICT, asked_ns=1000, settled_ns=1500)]
    (violation,) = check([_answer("1", 1501, 1510)], commits)
    assert violation.kind == checker.WENT_BACK
    assert "known to be done" in violation.text
    assert check([_answer("1", 1499, 1510)], commits) == []


def test_models_changed_together_are_seen_together() -> None:
    commits = [Commit(1, {"x": "1", "y": "1"}), Commit(2, {"x": "2", "y": "2"}, STRICT, asked_ns=1000)]
    history = [_answer("2", 1100, 1110, "x"), _answer("1", 1200, 1210, "y")]
    assert [violation.kind for violation in check(history, commits)] == [checker.WENT_BACK]


def test_a_later_commit_of_one_model_still_binds_what_changed_with_it_before() -> None:
    commits = [
        Commit(1, {"x": "1", "y": "1"}),
        Commit(2, {"x": "2", "y": "2"}, STRICT, asked_ns=1000),
        Commit(3, {"x": "3", "y": "2"}, STRICT, asked_ns=2000),
    ]
    history = [_answer("3", 2100, 2110, "x"), _answer("1", 2200, 2210, "y")]
    assert [violation.kind for violation in check(history, commits)] == [checker.WENT_BACK]


def test_a_pipeline_is_bound_by_a_strict_change_of_its_stages_alone() -> None:
    before = {"chain": "1", "stage_a": "1", "stage_b": "1"}
    commits = [Commit(1, before), Commit(2, {**before, "stage_a": "2", "stage_b": "2"}, STRICT, asked_ns=1000)]

    def chain(stages: str, started: int) -> Answer:
        return Answer("c1", "gw1", "chain", started, started + 10, "1", tuple((name, stages) for name in STAGES))

    assert _kinds([chain("2", 1100), chain("1", 1200)], commits) == [checker.WENT_BACK]


def test_a_commit_is_not_before_the_one_it_follows_was_asked_for() -> None:
    commits = [
        Commit(1, {"x": "1", "y": "1"}),
        Commit(2, {"x": "2", "y": "1"}, asked_ns=2000),
        Commit(3, {"x": "2", "y": "2"}, asked_ns=1000),
    ]
    assert [one.kind for one in check([_answer("2", 1400, 1500, "y")], commits)] == [checker.TOO_EARLY]


def test_another_models_fast_change_is_not_bound_by_a_strict_one() -> None:
    commits = [
        Commit(1, {"x": "1", "y": "1"}),
        Commit(2, {"x": "1", "y": "2"}, FAST, asked_ns=1000),
        Commit(3, {"x": "2", "y": "2"}, STRICT, asked_ns=2000),
    ]
    assert check([_answer("2", 2100, 2110, "x"), _answer("1", 2200, 2210, "y")], commits) == []


def test_a_canary_allows_both_versions_but_no_mixture() -> None:
    together = {"chain": "1", "stage_a": "1", "stage_b": "1"}
    commits = [Commit(1, together, canary={"stage_a": "2", "stage_b": "2"})]

    def chain(a: str, b: str) -> Answer:
        return Answer("c1", "gw1", "chain", 10, 20, "1", (("stage_a", a), ("stage_b", b)))

    assert check([chain("1", "1"), chain("2", "2")], commits, PIPELINES) == []
    assert _kinds([chain("1", "2")], commits) == [checker.MIXED]


def test_a_pipeline_has_to_tell_all_its_stages() -> None:
    commits = [Commit(1, {"chain": "1", "stage_a": "1", "stage_b": "1"})]
    assert _kinds([Answer("c1", "gw1", "chain", 10, 20, "1", (("stage_a", "1"),))], commits) == [checker.MIXED]


def test_a_model_that_says_another_version_than_its_answer_is_found() -> None:
    answer = Answer("c1", "gw1", "solo", 1100, 1110, "2", (("solo", "1"),))
    assert [violation.kind for violation in check([answer], _commits("1", "2"))] == [checker.MIXED]


@pytest.mark.parametrize(
    "record",
    [
        Answer("c1", "gw1", "solo", 20, 10, "1"),
        Answer("c1", "gw1", "solo", 10, 20, "1", outcome=""),
        Answer("c1", "gw1", "solo", 10, 20, outcome=ERROR),
        Answer("c1", "gw1", "solo", 0, 20, "1"),
    ],
)
def test_a_record_that_makes_no_sense_is_found(record: Answer) -> None:
    assert [violation.kind for violation in check([record], _commits("1"))] == [checker.MALFORMED]


def test_an_explicit_error_is_no_violation() -> None:
    failed = Answer("c1", "gw1", "solo", 10, 20, outcome=ERROR, error="503 no worker is ready")
    assert check([failed], _commits("1")) == []


def test_one_stale_answer_does_not_accuse_those_after_it() -> None:
    commits = _commits("1", "2")
    stale = _answer("1", 1200, 1210)
    history = [_answer("2", 1100, 1110), stale, *(_answer("2", at, at + 5) for at in range(1300, 1900, 10))]
    assert [violation.answers[0] for violation in check(history, commits)] == [stale]


def test_a_version_served_again_soon_after_makes_a_commit_undecidable() -> None:
    back_and_forth = [
        Commit(1, {"solo": "1"}),
        Commit(2, {"solo": "2"}, FAST, asked_ns=1000),
        Commit(3, {"solo": "1"}, STRICT, asked_ns=2000, settled_ns=2500),
        Commit(4, {"solo": "2"}, STRICT, asked_ns=3000, settled_ns=3500),
    ]
    # Version 1 in epoch 3 may be epoch 1's; version 2 in epoch 4 cannot be epoch 2's, since epoch 3 was known done.
    assert undecidable(back_and_forth) == [3]
    assert undecidable(_commits("1", "2", "3", "1")) == [4]
