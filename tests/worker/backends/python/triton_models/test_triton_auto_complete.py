"""``pb_utils.ModelConfig``, against a small model of the rules: what the file states cannot be changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.worker.backends.python.triton.auto_complete import ModelConfig


def config(**more: Any) -> ModelConfig:
    return ModelConfig(json.dumps({"name": "m", "max_batch_size": 0, "input": [], "output": [], **more}))


@given(st.integers(0, 8), st.integers(0, 8))
def test_the_batch_size_only_grows(stated: int, wanted: int) -> None:
    made = config(max_batch_size=stated)
    if wanted < stated:
        with pytest.raises(ValueError, match=f"specified max_batch_size {stated}.*specified max_batch_size {wanted}"):
            made.set_max_batch_size(wanted)
    else:
        made.set_max_batch_size(wanted)
    assert made.as_dict()["max_batch_size"] == max(stated, wanted)


@pytest.mark.parametrize("scheduler", ["sequence_batching", "ensemble_scheduling"])
def test_one_scheduler_at_a_time(scheduler: str) -> None:
    with pytest.raises(ValueError, match=f"scheduling_choice as '{scheduler}'"):
        config(**{scheduler: {}}).set_dynamic_batching()


def test_dynamic_batching_that_is_there_stays() -> None:
    made = config(dynamic_batching={"preferred_batch_size": [4]})
    made.set_dynamic_batching()
    assert made.as_dict()["dynamic_batching"] == {"preferred_batch_size": [4]}
    other = config()
    other.set_dynamic_batching()
    assert other.as_dict()["dynamic_batching"] == {}


@given(st.sampled_from([None, False, True]), st.sampled_from([False, True]))
def test_the_transaction_policy(stated: bool | None, wanted: bool) -> None:
    made = config(**({} if stated is None else {"model_transaction_policy": {"decoupled": stated}}))
    if stated is not None and stated != wanted:
        with pytest.raises(ValueError, match=f"already set to '{stated}'"):
            made.set_model_transaction_policy({"decoupled": wanted})
    else:
        made.set_model_transaction_policy({"decoupled": wanted})
        assert made.as_dict()["model_transaction_policy"] == {"decoupled": wanted}


def test_properties_that_nobody_knows() -> None:
    with pytest.raises(ValueError, match="other than 'decoupled'"):
        config().set_model_transaction_policy({"decoupled": True, "more": 1})
    with pytest.raises(ValueError, match="other than 'name', 'data_type' and 'dims'"):
        config().add_output({"name": "A", "data_type": "TYPE_FP32", "dims": [1], "optional": True})
    with pytest.raises(ValueError, match="other than 'name', 'data_type', 'dims' and 'optional'"):
        config().add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [1], "format": 2})


_TENSOR = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["A", "B"]),
        "data_type": st.sampled_from(["TYPE_FP32", "TYPE_INT32"]),
        "dims": st.sampled_from([[1], [-1, 2]]),
    }
)
_STATED = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["A", "B"]),
        "data_type": st.sampled_from(["TYPE_INVALID", "TYPE_FP32", "TYPE_INT32"]),
        "dims": st.sampled_from([[], [1], [-1, 2]]),
    }
)


@given(
    st.sampled_from(["input", "output"]),
    st.lists(_STATED, max_size=2, unique_by=lambda each: each["name"]),
    st.lists(_TENSOR, max_size=3),
)
def test_tensors(kind: str, stated: list[dict[str, Any]], added: list[dict[str, Any]]) -> None:
    """A tensor that the file states is completed, and must not contradict it; another one is appended."""
    made = config(**{kind: stated})
    expected = {each["name"]: dict(each) for each in stated}
    for tensor in added:
        known = expected.get(tensor["name"])
        add = made.add_input if kind == "input" else made.add_output
        if known is None:
            add(dict(tensor))
            expected[tensor["name"]] = dict(tensor)
        elif known["data_type"] not in ("TYPE_INVALID", tensor["data_type"]) or known["dims"] not in (
            [],
            tensor["dims"],
        ):
            with pytest.raises(ValueError, match="configuration"):
                add(dict(tensor))
        else:
            add(dict(tensor))
            known.update(tensor)
    assert {each["name"]: each for each in made.as_dict()[kind]} == expected


@given(st.sampled_from([None, False, True]), st.sampled_from([None, False, True]))
def test_optional_inputs(stated: bool | None, wanted: bool | None) -> None:
    tensor: dict[str, Any] = {"name": "A", "data_type": "TYPE_FP32", "dims": [1]}
    made = config(input=[{**tensor, **({} if stated is None else {"optional": stated})}])
    added = {**tensor, **({} if wanted is None else {"optional": wanted})}
    if stated is not None and wanted is not None and stated != wanted:
        with pytest.raises(ValueError, match=f"expects optional {wanted}"):
            made.add_input(added)
    else:
        made.add_input(added)
        assert made.as_dict()["input"][0].get("optional") == (stated if wanted is None else wanted)


@pytest.mark.parametrize("missing", ["name", "data_type", "dims"])
@pytest.mark.parametrize("kind", ["input", "output"])
def test_what_a_tensor_needs(kind: str, missing: str) -> None:
    tensor = {"name": "A", "data_type": "TYPE_FP32", "dims": [1]}
    del tensor[missing]
    with pytest.raises(ValueError, match=f"is missing '{missing}' property"):
        getattr(config(), f"add_{kind}")(tensor)
