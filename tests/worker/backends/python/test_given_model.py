"""A model that is given as an object: made, called, and closed by the python backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isochrone.errors import ModelFailed
from isochrone.worker.backends.python.given import GivenModel
from isochrone.worker.backends.python.model import ModelContext

CONTEXT = ModelContext("m", "1", Path.cwd(), {}, {}, 0)


def fail(*_: Any) -> Any:
    raise ValueError("no")


class Closes:
    def infer(self, inputs: Any) -> Any:
        return {"y": inputs["x"]}

    def close(self) -> None:
        fail()


def test_an_object_that_cannot_be_made_names_the_line() -> None:
    with pytest.raises(ModelFailed, match=r"^model 'm': load raised ValueError: no \(test_given_model.py:\d+\)$"):
        GivenModel(CONTEXT, fail, {})


def test_a_close_that_raises_is_reported_and_the_object_is_let_go() -> None:
    model = GivenModel(CONTEXT, lambda context: Closes(), {"y": "FP32"})
    with pytest.raises(ModelFailed, match="close raised ValueError: no"):
        model.close()
    assert not hasattr(model, "_model")


def test_an_infer_may_take_the_requests_parameters() -> None:
    class Decoupled:
        def infer(self, inputs: Any, parameters: Any) -> Any:
            yield {"y": [float(parameters["n"])]}

    model = GivenModel(CONTEXT, lambda context: Decoupled(), {"y": "FP32"})
    (response,) = list(model.stream({}, {"n": 3}))  # type: ignore[arg-type]
    assert response["y"].tolist() == [3]
