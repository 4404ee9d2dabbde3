"""Questions: what is read, what is rejected, and the fleet that they ask for."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from what_if_situations import a_model, a_situation

from isochrone.errors import InvalidArgument
from isochrone.simulate.what_if.question import AddWorkers, Load, LoseWorkers, Policy, changed, parse_questions


def test_questions_are_read() -> None:
    texts = ["lose=w1, w2", "load=2", "load=a:b:0.5", "policy=p2c", "policy=prequal", "add=gpu:3"]
    assert parse_questions(texts) == (
        LoseWorkers(("w1", "w2")),
        Load(2.0),
        Load(0.5, "a:b"),
        Policy("power_of_two"),
        Policy("prequal"),
        AddWorkers("gpu", 3),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "lose=WORKER"),
        ("lose", "lose=WORKER"),
        ("lose=", "lose=WORKER"),
        ("kill=w1", "add=POOL:WORKERS"),
        ("lose=w1,,w2", "names of workers"),
        ("load=0", "a factor above 0"),
        ("load=-1", "a factor above 0"),
        ("load=nan", "a factor above 0"),
        ("load=inf", "a factor above 0"),
        ("load=detector:", "a factor above 0"),
        ("policy=prequall", "did you mean 'prequal'"),
        ("policy=best", "round_robin"),
        ("add=3", "POOL:WORKERS"),
        ("add=gpu:0", "POOL:WORKERS"),
        ("add=gpu:99999999999", "POOL:WORKERS"),
        ("add=gpu:001000000000", "POOL:WORKERS"),
        ("add=gpu:000100" + "0" * 5000, "POOL:WORKERS"),
        ("lose=" + "w" * 200_000, "at most 100000 characters"),
    ],
)
def test_other_texts_are_rejected_with_what_is_allowed(text: str, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        parse_questions([text])


@pytest.mark.parametrize("number", [0, 33])
def test_there_must_be_some_questions_and_not_too_many(number: int) -> None:
    with pytest.raises(InvalidArgument, match="from 1 to 32 questions"):
        parse_questions(["load=2"] * number)


@given(st.text(max_size=30))
def test_any_text_is_read_or_rejected(text: str) -> None:
    with suppress(InvalidArgument):
        assert len(parse_questions([text])) == 1


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("lose=w9", "w1, w2"), ("load=classifier:2", "detector"), ("add=gpu:1", "pool")],
)
def test_unknown_names_are_rejected_with_those_that_are_known(text: str, allowed: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"\({allowed}\)"):
        changed(a_situation(), parse_questions([text]))


def test_changes_add_up() -> None:
    situation = a_situation(3, a_model("a", 10.0), a_model("b", 20.0), policy="prequal", policy_options={"probes": 2})
    after = changed(situation, parse_questions(["lose=w1", "load=2", "load=b:3", "add=pool:2", "policy=p2c"]))
    assert [worker.name for worker in after.workers] == ["w2", "w3", "pool-added-1", "pool-added-2"]
    assert {worker.models for worker in after.workers} == {("a", "b")}
    assert {model.name: model.rate for model in after.models} == {"a": 20.0, "b": 120.0}
    assert after.rules["defaults"] == {"policy": "power_of_two"}
    assert changed(situation, ()) == situation


def test_the_policy_of_every_model_changes_and_its_other_rules_stay() -> None:
    rules: dict[str, Any] = {
        "models": {"detector": {"policy": "prequal", "policy_options": {"probes": 1}, "deadline_ms": 5}}
    }
    after = changed(msgspec.structs.replace(a_situation(), rules=rules), [Policy("random")])
    assert after.rules["models"] == {"detector": {"policy": "random", "deadline_ms": 5}}
    assert rules["models"]["detector"]["policy"] == "prequal", "the situation itself stays as it is"


def test_workers_that_are_added_twice_have_names_of_their_own() -> None:
    after = changed(a_situation(1), parse_questions(["add=pool:1", "add=pool:1"]))
    assert len({worker.name for worker in after.workers}) == 3
