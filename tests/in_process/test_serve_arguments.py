"""Wrong arguments of ``isochrone.serve`` and ``@isochrone.model``: nothing is started, and the message names them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import isochrone
from isochrone.errors import ConfigError, ModelFailed
from isochrone.in_process.options import options_of


def double(x: Any) -> Any:
    return {"y": x * 2}


def count(start: Any) -> Iterator[Any]:
    yield {"left": start}


async def coroutine(x: Any) -> Any:
    return {"y": x}


def positional(x: Any, /) -> Any:
    return {"y": x}


def doubles_in_place(x: Any) -> Any:
    x *= 2
    return {"y": x}


def grows(x: Any) -> Any:
    return {"y": x if len(x) == 1 else x[:, :2]}


def fails(x: Any) -> Any:
    raise ValueError("no")


class NoInfer:
    pass


class Scale:
    closed = 0

    def load(self, context: Any) -> None:
        self.factor = float(context.parameters.get("factor", "2"))

    def infer(self, inputs: Any) -> Any:
        return {"y": inputs["x"] * np.float32(self.factor)}

    def close(self) -> None:
        Scale.closed += 1


X = {"x": "FP32[3]"}


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (double, {}, 'serve(double): inputs: expected inputs={"x": "FP32[3]"} or example='),
        (double, {"inputs": {"z": "FP32[3]"}}, "inputs: expected the parameters of double: x, given z"),
        (double, {"inputs": {**X, "z": "FP32[3]"}}, "expected the parameters of double: x, given x, z"),
        (double, {"example": {"z": np.zeros(3)}}, "example: expected the parameters of double: x, given z"),
        (double, {"inputs": X, "example": {"x": np.zeros(3)}}, "expected FP32[3], as inputs says, given FP64[3]"),
        (double, {"inputs": X, "batch": -1}, "batch: expected a whole number of at least 0, given -1"),
        (double, {"inputs": X, "batch": 1.5}, "batch: expected a whole number"),
        (double, {"inputs": X, "instances": 0}, "instances: expected a whole number of at least 1, given 0"),
        (double, {"inputs": X, "deadline_ms": 0}, "deadline_ms: expected milliseconds above 0, given 0"),
        (
            double,
            {"inputs": X, "parameters": {"n": 3}},
            "parameters['n']: expected a string",
        ),
        (double, {"inputs": X, "name": "a/b"}, "name: expected a name for the model"),
        (double, {"inputs": X, "http_port": 70000}, "http_port: expected a port from 0 to 65535, given 70000"),
        (lambda x: {"y": x}, {"inputs": X}, "name: expected a name, since the function has none, given <lambda>"),
        (coroutine, {"inputs": X}, "expected a plain function"),
        (positional, {"inputs": X}, "x: expected a parameter that can be given by name"),
        (count, {"inputs": {"start": "INT32[1]"}, "batch": 4}, "batch: expected 0, since a generator"),
        (NoInfer, {"inputs": X}, "model: expected a function, a class with a method infer"),
        (7, {"inputs": X}, "given a int"),
        ([], {}, "model: expected at least one model, given an empty list"),
        ([double], {"inputs": X}, "inputs: expected none for a list of models"),
        (Scale(), {"inputs": X, "instances": 2}, "instances: expected 1 for an object"),
        (
            Scale,
            {"inputs": X, "parameters": {"isolation": "process"}},
            'isochrone.serve(Scale): parameters["isolation"]: expected thread',
        ),
    ],
)
def test_a_wrong_argument_is_named(model: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, ModelFailed)) as caught:
        isochrone.serve(model, block=False, **{"http_port": 0, "grpc_port": 0, "metrics_port": 0, **options})
    assert words in str(caught.value)


_COPY = "output array is read-only (inputs are read-only; a model that changes one needs a copy of it: x = x.copy())"


@pytest.mark.parametrize(
    ("model", "options", "end"),
    [
        (double, {"outputs": {"y": "FP32[4]"}}, "output 'y': expected shape [4] as outputs declares, given [3]"),
        (double, {"outputs": {"y": "FP64[3]"}}, "output 'y': expected FP64 (float64), given FP32 (float32)"),
        (double, {"outputs": {"z": "FP32[3]"}}, "output 'y': expected one of 'z'"),
        (grows, {"batch": 2}, "output 'y': expected shape [2,3] as its first call returned, given [2,2]"),
        (fails, {"outputs": {"y": "FP32[3]"}}, "(a model that cannot take zeros needs an example: example={...})"),
        (doubles_in_place, {}, _COPY),
    ],
)
def test_a_model_that_cannot_be_served_is_refused_with_the_reason_alone(
    model: Any, options: dict[str, Any], end: str
) -> None:
    with pytest.raises(ModelFailed) as caught:
        isochrone.serve(model, inputs=X, block=False, http_port=0, grpc_port=0, metrics_port=0, **options)
    assert str(caught.value).endswith(end)


def test_a_write_to_an_input_fails_before_the_first_request_if_nothing_is_learned() -> None:
    options = {"inputs": X, "outputs": {"y": "FP32[3]"}}
    with pytest.raises(ModelFailed, match=r"infer raised ValueError: output array is read-only .* needs a copy of it"):
        isochrone.serve(doubles_in_place, block=False, http_port=0, grpc_port=0, metrics_port=0, **options)


def test_two_models_of_one_name_are_refused() -> None:
    twice = isochrone.model(name="double", inputs=X)(lambda x: {"y": x})
    first = isochrone.model(inputs=X)(double)
    try:
        with pytest.raises(ConfigError, match="a name of its own for each model, given two models named 'double'"):
            isochrone.serve([first, twice], block=False)
    finally:
        del double.__isochrone__  # type: ignore[attr-defined]


def test_what_was_loaded_to_learn_is_closed_if_it_is_not_served() -> None:
    class Wrong(Scale):
        def infer(self, inputs: Any) -> Any:
            raise ValueError("broken")

    before = Scale.closed
    with pytest.raises(ModelFailed, match="raised ValueError: broken"):
        isochrone.serve(Wrong, inputs=X, block=False)
    assert Scale.closed == before + 1
    good = isochrone.model(inputs=X)(type("Good", (Scale,), {}))
    bad = isochrone.model(inputs=X)(type("Bad", (Wrong,), {}))
    with pytest.raises(ModelFailed):
        isochrone.serve([good, bad], block=False)
    assert Scale.closed == before + 3


def test_the_decorator_returns_what_it_decorates() -> None:
    @isochrone.model
    def plain(x: Any) -> Any:
        return {"y": x}

    @isochrone.model(name="other", batch=4, inputs=X)
    class Decorated(Scale):
        pass

    assert plain(3) == {"y": 3}
    assert options_of(plain).given() == []
    assert options_of(Decorated).name == options_of(Decorated()).name == "other"
    assert options_of(double).batch is None
    with pytest.raises(ConfigError, match="batch: expected a whole number"):
        isochrone.model(batch=-1)(double)
    with pytest.raises(ConfigError, match="expected a function or a class, given a int"):
        isochrone.model(3)
    with pytest.raises(TypeError, match=r"@isochrone.model: bach: expected a known option \(did you mean 'batch'\?\)"):
        isochrone.model(bach=4)  # type: ignore[call-overload]


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys, isochrone; print(sorted(m for m in sys.modules if m.startswith(('isochrone', 'numpy', 'grpc'))))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "['isochrone']"
    assert {"serve", "model", "Client", "AsyncClient", "Server"} <= set(dir(isochrone))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        isochrone.nothing  # type: ignore[attr-defined]  # noqa: B018
