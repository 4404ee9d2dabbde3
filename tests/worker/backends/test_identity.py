"""The identity backend: pairs of tensors, delays, and configurations that cannot be an identity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from config_text import parameter, tensors
from load_contexts import MakeContext

from isochrone.errors import ConfigError
from isochrone.worker.backends import identity
from isochrone.worker.backends.identity import load


def test_outputs_are_the_inputs_by_position(make_context: MakeContext) -> None:
    config = tensors("input", a="FP32", b="STRING") + tensors("output", c="FP32", d="STRING")
    executable = load(make_context(config))
    a, b = np.arange(3, dtype=np.float32), np.array([b"x"], np.object_)
    assert executable.inline_allowed
    outputs = executable.execute({"a": a, "b": b}, None)
    assert outputs["c"] is a
    assert outputs["d"] is b
    assert list(executable.execute({"a": a, "b": b}, ("d",))) == ["d"]
    executable.close()


def test_tritons_names_pair_by_their_number(make_context: MakeContext) -> None:
    config = tensors("input", INPUT0="FP32", INPUT1="INT8") + tensors("output", OUTPUT1="INT8", OUTPUT0="FP32")
    inputs = {"INPUT0": np.zeros(1, np.float32), "INPUT1": np.ones(2, np.int8)}
    outputs = load(make_context(config)).execute(inputs, None)
    assert outputs["OUTPUT1"] is inputs["INPUT1"]
    assert outputs["OUTPUT0"] is inputs["INPUT0"]


def test_an_optional_input_that_is_left_out_is_zeros(make_context: MakeContext) -> None:
    config = """
        max_batch_size: 4
        input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
        input { name: "INPUT1" data_type: TYPE_INT32 dims: [ 3, -1 ] optional: true }
        input { name: "INPUT2" data_type: TYPE_STRING dims: [ 1 ] optional: true }
        output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
        output { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 3, -1 ] }
        output { name: "OUTPUT2" data_type: TYPE_STRING dims: [ 1 ] }
    """
    outputs = load(make_context(config)).execute({"INPUT0": np.ones((2, 2), np.float32)}, None)
    assert outputs["OUTPUT1"].tolist() == np.zeros((2, 3, 1)).tolist()
    assert outputs["OUTPUT1"].dtype == np.int32
    assert outputs["OUTPUT2"].tolist() == [[b""], [b""]]


@pytest.mark.parametrize(
    ("instance", "multiplier", "seconds"), [(0, None, 0.02), (2, None, 0.02), (0, "5", 0.02), (2, "5", 0.2)]
)
def test_delays_of_runs(
    make_context: MakeContext,
    monkeypatch: pytest.MonkeyPatch,
    instance: int,
    multiplier: str | None,
    seconds: float,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(identity.time, "sleep", slept.append)
    config = tensors("input", a="FP32") + tensors("output", b="FP32") + parameter("execute_delay_ms", "20")
    if multiplier is not None:
        config += parameter("instance_wise_delay_multiplier", multiplier)
    executable = load(replace(make_context(config), instance=instance))
    assert not executable.inline_allowed
    executable.execute({"a": np.zeros(1, np.float32)}, None)
    assert slept == [seconds]


def test_the_delay_of_a_load(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(identity.time, "sleep", slept.append)
    config = tensors("input", a="FP32") + tensors("output", b="FP32") + parameter("creation_delay_sec", "3")
    assert load(make_context(config)).inline_allowed
    assert slept == [3]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (tensors("input", a="FP32"), r"output: expected as many outputs as inputs \(1\), given 0"),
        (
            tensors("input", a="FP32") + tensors("output", b="FP64"),
            "output 'b' data_type: expected FP32, as input 'a' has, given FP64",
        ),
        (
            tensors("input", a="FP32") + tensors("output", rank=2, b="FP32"),
            r"output 'b' dims: expected \[-1\], as input 'a' has, given \[-1, -1\]",
        ),
        (
            tensors("input", a="FP32") + tensors("output", b="FP32") + parameter("enable_custom_tracing", "true"),
            r'parameters\["enable_custom_tracing"\]: expected false',
        ),
        (
            tensors("input", a="FP32") + tensors("output", b="FP32") + parameter("execute_delay_ms", "x"),
            r'parameters\["execute_delay_ms"\]: expected an integer >= 0',
        ),
    ],
)
def test_what_is_no_identity_is_refused(make_context: MakeContext, config: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(make_context(config))
