"""Ensembles: which graphs of steps are refused, and why."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from isochrone.errors import ConfigError
from isochrone.models.configuration.validation import validate

FILE = "e/config.pbtxt"
STEP = "ensemble_scheduling.step"


def ensemble(
    steps: list[tuple[str, dict[str, str], dict[str, str]]],
    inputs: tuple[str, ...] = ("IN",),
    outputs: tuple[str, ...] = ("OUT",),
) -> model_config_pb2.ModelConfig:
    config = model_config_pb2.ModelConfig(name="e", platform="ensemble")
    for name in inputs:
        config.input.add(name=name, data_type="TYPE_FP32", dims=[1])
    for name in outputs:
        config.output.add(name=name, data_type="TYPE_FP32", dims=[1])
    config.ensemble_scheduling.SetInParent()
    for model, input_map, output_map in steps:
        config.ensemble_scheduling.step.add(model_name=model, input_map=input_map, output_map=output_map)
    return config


def refusal(config: model_config_pb2.ModelConfig) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        validate(config, FILE)
    assert caught.value.where == FILE
    return caught.value


def test_a_diamond_in_any_order_passes() -> None:
    steps = [
        ("join", {"a": "left", "b": "right"}, {"y": "OUT"}),
        ("head", {"x": "IN"}, {"y": "middle"}),
        ("one", {"x": "middle"}, {"y": "left"}),
        ("two", {"x": "middle"}, {"y": "right"}),
    ]
    validate(ensemble(steps), FILE)


@pytest.mark.parametrize(
    ("config", "key", "expected", "given"),
    [
        (ensemble([]), STEP, "at least one step", "none"),
        (ensemble([("", {"x": "IN"}, {"y": "OUT"})]), f"{STEP}[0].model_name", "a model name", "''"),
        (ensemble([("e", {"x": "IN"}, {"y": "OUT"})]), f"{STEP}[0].model_name", "other than the ensemble", "'e'"),
        (ensemble([("a", {}, {"y": "OUT"})]), f"{STEP}[0].input_map", "at least one entry", "none"),
        (ensemble([("a", {"x": "IN"}, {})]), f"{STEP}[0].output_map", "at least one entry", "none"),
        (ensemble([("a", {"x": ""}, {"y": "OUT"})]), f"{STEP}[0].input_map", "a tensor name", "'x': ''"),
        (
            ensemble([("a", {"x": "nowhere"}, {"y": "OUT"})]),
            f"{STEP}[0].input_map['x']",
            "a tensor the ensemble has (IN, OUT)",
            "'nowhere'",
        ),
        (
            ensemble([("a", {"x": "IN"}, {"y": "OUT"}), ("b", {"x": "IN"}, {"y": "OUT"})]),
            f"{STEP}[1].output_map['y']",
            f"not already made by {STEP}[0]",
            "'OUT'",
        ),
        (
            ensemble([("a", {"x": "IN"}, {"y": "IN"})]),
            f"{STEP}[0].output_map['y']",
            "not already made by input[0]",
            "'IN'",
        ),
        (
            ensemble([("a", {"x": "IN"}, {"y": "OUT"})], inputs=("IN", "SPARE")),
            "input[1].name",
            "an input that some step's input_map uses",
            "'SPARE'",
        ),
        (
            ensemble([("a", {"x": "IN"}, {"y": "OUT"})], outputs=("OUT", "LOST")),
            "output[1].name",
            "a tensor that some step's output_map makes (OUT)",
            "'LOST'",
        ),
        (
            ensemble([("a", {"x": "IN"}, {"y": "OUT", "z": "spare"})]),
            f"{STEP}[0].output_map['z']",
            "a tensor that another step's input_map or the ensemble's output uses",
            "'spare'",
        ),
        (
            ensemble([("a", {"x": "IN", "z": "OUT"}, {"y": "OUT"})]),
            STEP,
            "steps without a cycle",
            "step[0] a -> step[0] a",
        ),
    ],
)
def test_what_is_wrong_is_named(config: model_config_pb2.ModelConfig, key: str, expected: str, given: str) -> None:
    error = refusal(config)
    assert (error.key, error.given) == (key, given)
    assert expected in error.expected


def test_a_cycle_is_shown_whole() -> None:
    steps = [
        ("a", {"x": "IN", "z": "late"}, {"y": "early"}),
        ("b", {"x": "early"}, {"y": "late", "z": "OUT"}),
    ]
    error = refusal(ensemble(steps))
    assert error.expected == "steps without a cycle"
    assert "step[0] a" in error.given
    assert "step[1] b" in error.given


def test_instances_and_versions_of_an_ensemble() -> None:
    config = ensemble([("a", {"x": "IN"}, {"y": "OUT"})])
    config.ensemble_scheduling.step[0].model_version = -1
    validate(config, FILE)
    config.ensemble_scheduling.step[0].model_version = -2
    assert (refusal(config).key, refusal(config).given) == (f"{STEP}[0].model_version", "-2")
    config.ensemble_scheduling.step[0].model_version = 3
    config.instance_group.add(count=1)
    assert refusal(config).key == "instance_group"


@given(st.lists(st.sets(st.integers(0, 5), max_size=3), min_size=1, max_size=6))
def test_refused_exactly_when_some_step_reaches_itself(needs: list[set[int]]) -> None:
    """Step i makes tensor t<i> and needs IN and the tensors of the steps in ``needs[i]``."""
    edges = {index: {other for other in others if other < len(needs)} for index, others in enumerate(needs)}
    steps = [
        (f"m{index}", {"x": "IN"} | {f"i{other}": f"t{other}" for other in others}, {"y": f"t{index}"})
        for index, others in edges.items()
    ]
    reached = {index: set(others) for index, others in edges.items()}
    for _ in needs:
        for index in reached:
            reached[index] |= {far for near in reached[index] for far in reached[near]}
    config = ensemble(steps, outputs=tuple(f"t{index}" for index in edges))
    if any(index in far for index, far in reached.items()):
        assert refusal(config).expected == "steps without a cycle"
    else:
        validate(config, FILE)
        assert text_format.MessageToString(config)
