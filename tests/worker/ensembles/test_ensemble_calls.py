"""Requests through real ensembles: batching mixed, sizes of 0, reshape, optional inputs, some of the outputs.

What is expected here is what real Triton answers; ``tests/peers`` asks it the same.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from queued_requests import RecordedRequest
from runner_bench import until

from ensemble_calls import CALLS, MODELS
from ensemble_repository import write_repository
from isochrone.clock import now_ns
from isochrone.errors import IsochroneError
from isochrone.models.repository.repository import Repository
from isochrone.protocol.messages import NO_PARAMETERS, Parameters, Plan
from isochrone.protocol.tensors.datatypes import name_of
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.load_parameters import LoadParameters

FOUR = [0.0, 1.0, 2.0, 3.0]
NO_SEQUENCE = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}

#: Outputs by name, or the words of an error.
EXPECTED: dict[str, dict[str, Any] | str] = {
    "two steps": {"Y": FOUR},
    "nested": {"Y": FOUR},
    "strings": {"Y": [b"alpha", b"", "βήτα".encode()]},
    "join": {"Y": [0.0, 2.0, 4.0, 6.0]},
    "a row to a vector": {"Y": [[4]]},
    "rows to a vector": "in ensemble 'batched_to_vector', unexpected shape for input 'IN' for model 'shape_vector'",
    "a row to rows": {"Y": [[1, 4]]},
    "rows to rows": {"Y": [[3, 4]]},
    "a vector to a batch": {"Y": [1, 4]},
    "rows to a batch": {"Y": [[3, 4], [3, 4], [3, 4]]},
    "no rows to a batch": "in ensemble 'rows_to_batched', ",
    "rows beyond a step's batch": "in ensemble 'rows_to_batched', inference request batch-size must be <= 8",
    "there and back, one row": {"Y": [FOUR]},
    "there and back, rows": "in ensemble 'there_and_back', unexpected shape for input 'IN' for model 'plain'",
    "a plain step in a batch of one": {"Y": [FOUR]},
    "a batching step without": {"Y": FOUR},
    "a batching step in rows": {"Y": [FOUR, [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]},
    "zero": {"Y": np.zeros(0)},
    "zero, batched": {"Y": np.zeros((2, 0))},
    "zero, mixed": {"Y": np.zeros((1, 0))},
    "zero rows": {"Y": np.zeros((0, 4))},
    "zero strings": {"Y": np.zeros(0)},
    "reshape of the ensemble": {"Y": FOUR},
    "reshape of a step": {"Y": FOUR, "S": [2, 2]},
    "reshape with free sizes": {"Y": np.arange(24.0).reshape(2, 4, 3)},
    "reshape of nothing": {"Y": np.zeros((0, 4, 3))},
    "reshape of the output": {"Y": np.arange(12.0).reshape(3, 2, 2)},
    "reshape of no rows": {"Y": np.zeros((0, 2, 2))},
    "both outputs": {"Y": FOUR, "Z": FOUR},
    "both outputs by name": {"Z": FOUR, "Y": FOUR},
    "second output": {"Z": FOUR},
    "the output without the failing step": {"Y": FOUR},
    "the output of the failing step": "in ensemble 'fork_with_failure', ",
    "an output that a step uses": {"Y": FOUR},
    "optional given": {"Y": [0.0, 2.0, 4.0, 6.0], "Z": [0.0, 2.0, 4.0, 6.0]},
    "optional left out": {"Y": FOUR},
    "optional left out, its output asked for": {},
    "optional left out, batched": {"Y": [FOUR, [4.0, 5.0, 6.0, 7.0]]},
    "optional through two steps": {"Y": [0.0, 4.0, 8.0, 12.0], "Z": [0.0, 4.0, 8.0, 12.0]},
    "optional left out of two steps": {"Y": FOUR},
    "optional that a step requires": "in ensemble 'optional_to_required', expected 2 inputs but got 1 inputs",
    "an output that is missing is required": "in ensemble 'missing_to_required', expected 2 inputs but got 1 inputs",
    "a step of a step fails": "in ensemble 'failing_inside', in ensemble 'failing', ",
}


class Caller(RecordedRequest):
    parameters: Parameters = NO_PARAMETERS

    def complete(self, outputs: dict[str, Any], parameters: Parameters = NO_PARAMETERS) -> None:
        self.parameters = parameters
        super().complete(outputs, parameters)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Parameters]]:
    """What each call was answered, and with which parameters."""
    repository = write_repository(tmp_path_factory.mktemp("called"), MODELS, "worker")

    async def play() -> dict[str, tuple[Any, Parameters]]:
        catalog = Catalog(Repository([repository]), None, 30)
        found: dict[str, tuple[Any, Parameters]] = {}
        try:
            assert await catalog.load_all({name: LoadParameters() for name in MODELS}) == {}
            for name in (*EXPECTED, "sequence flags without a sequence"):
                call = CALLS[name]
                inputs = tuple((key, name_of(array.dtype), array.shape) for key, array in call.inputs.items())
                plan = Plan(call.model, "", inputs, call.outputs or None, {}, **call.parameters)
                caller = Caller(plan, call.inputs, now_ns())
                catalog.find(call.model, "").submit(caller)
                await until(lambda caller=caller: caller.answers)
                found[name] = (caller.answers[0], caller.parameters)
            assert not any(served.in_flight for served in catalog.all_versions())
        finally:
            await catalog.close(5)
        return found

    return asyncio.run(asyncio.wait_for(play(), 100))


@pytest.mark.parametrize("name", EXPECTED)
def test_answer(answers: dict[str, tuple[Any, Parameters]], name: str) -> None:
    answer, parameters = answers[name]
    expected = EXPECTED[name]
    if isinstance(expected, str):
        assert isinstance(answer, IsochroneError)
        assert str(answer).startswith(expected)
        return
    assert not isinstance(answer, IsochroneError), answer
    assert list(answer) == list(expected)
    for output, values in expected.items():
        np.testing.assert_array_equal(answer[output], np.asarray(values, answer[output].dtype))
        assert answer[output].shape == np.shape(values)
    # An answer without data says nothing of a sequence.
    assert parameters == (NO_SEQUENCE if any(array.size for array in answer.values()) else {})


def test_answers_tell_the_sequence(answers: dict[str, tuple[Any, Parameters]]) -> None:
    _, parameters = answers["sequence flags without a sequence"]
    assert parameters == {"sequence_id": 9, "sequence_start": True, "sequence_end": False}
