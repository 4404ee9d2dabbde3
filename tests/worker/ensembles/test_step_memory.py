"""The memory between the steps of an ensemble on the CPU: which step reads the bytes that another wrote, and which a
copy of them.

Every step is a model in Triton's style that returns the addresses of its input and of its output.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from queued_requests import RecordedRequest
from runner_bench import until

from ensemble_repository import Ensemble, Model, Step, tensor, write_repository
from isochrone.clock import now_ns
from isochrone.models.repository.repository import Repository
from isochrone.protocol.messages import Plan
from isochrone.protocol.tensors.datatypes import name_of
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.load_parameters import LoadParameters

_ADDRESS = """
import numpy as np


def address(array):
    return array.__array_interface__["data"][0]
"""
#: Writes to its input, as a model in a process of its own may.
WORK = (
    _ADDRESS
    + """

def answer(given):
    array = given["IN"]
    made = array.copy()
    array[...] = made[::-1]
    return {"OUT": made, "AT": np.array([address(array), address(made)], np.int64)}
"""
)
#: Returns its input, and has written to it.
PASS = (
    _ADDRESS
    + """

def answer(given):
    array = given["IN"]
    array += 1
    return {"OUT": array, "AT": np.array([address(array), address(array)], np.int64)}
"""
)
#: Returns an array that it keeps, and that nobody may write to.
CONSTANT = (
    _ADDRESS
    + """
KEPT = %s


def answer(given):
    array = given["IN"]
    return {"OUT": KEPT, "AT": np.array([address(array), address(KEPT)], np.int64)}
"""
)
JOIN = (
    _ADDRESS
    + """

def answer(given):
    left, right = given["IN0"], given["IN1"]
    return {"OUT": left + right, "AT": np.array([address(left), address(right)], np.int64)}
"""
)
AT = tensor("AT", (2,), "INT64")


def one(body: str, datatype: str = "FP32", more: str = "") -> Model:
    return Model((tensor("IN", (-1,), datatype),), (tensor("OUT", (-1,), datatype), AT), body=body, more=more)


def step(model: str, given: str, made: str, number: int) -> Step:
    return Step(model, {"IN": given}, {"OUT": made, "AT": f"AT{number}"})


def addresses(count: int) -> tuple[str, ...]:
    return tuple(tensor(f"AT{number}", (2,), "INT64") for number in range(count))


def ensemble(steps: tuple[Step, ...], outputs: tuple[str, ...] = ("Y",), datatype: str = "FP32") -> Ensemble:
    made = tuple(tensor(name, (-1,), datatype) for name in outputs)
    return Ensemble((tensor("X", (-1,), datatype),), (*made, *addresses(len(steps))), steps)


def chain(*models: str, datatype: str = "FP32") -> Ensemble:
    names = ["X", *(f"t{index}" for index in range(1, len(models))), "Y"]
    steps = tuple(step(model, *names[index : index + 2], index) for index, model in enumerate(models))
    return ensemble(steps, datatype=datatype)


def asked(
    directory: Path, models: dict[str, Model | Ensemble], array: Any, times: int = 1
) -> tuple[list[Any], list[list[int]]]:
    """The answers of the ensemble ``e``, and [input's, output's] address of each step of the last request."""
    repository = write_repository(directory, models, "triton")

    async def play() -> list[Any]:
        catalog = Catalog(Repository([repository]), None, 30)
        try:
            assert await catalog.load_all({name: LoadParameters() for name in models}) == {}
            answers = []
            for _ in range(times):
                plan = Plan("e", "", (("X", name_of(array.dtype), array.shape),), None)
                request = RecordedRequest(plan, {"X": array}, now_ns())
                catalog.find("e", "").submit(request)
                await until(lambda request=request: request.answers)
                answers.append(request.answers[0])
                assert isinstance(answers[-1], dict), answers[-1]
            return answers
        finally:
            await catalog.close(5)

    answers = asyncio.run(asyncio.wait_for(play(), 60))
    last = answers[-1]
    return answers, [last[name].tolist() for name in sorted(last) if name.startswith("AT")]


def copies(found: list[list[int]]) -> int:
    """Steps of a chain that read other bytes than the step before wrote."""
    return sum(made != read for (_, made), (read, _) in pairwise(found))


@pytest.mark.parametrize("size", [4, 5_000, 500_000])
@pytest.mark.parametrize("inline", ["true", "false"])
def test_no_step_copies_the_tensor_of_the_step_before(tmp_path: Path, size: int, inline: str) -> None:
    """On the event loop's thread and on threads of their own."""
    more = f'parameters {{ key: "inline" value {{ string_value: "{inline}" }} }}'
    models: dict[str, Model | Ensemble] = {"work": one(WORK, more=more), "e": chain("work", "work", "work", "work")}
    array = np.arange(size, dtype=np.float32)
    (answer,), found = asked(tmp_path, models, array.copy())
    assert copies(found) == 0
    np.testing.assert_array_equal(answer["Y"], array)


def test_strings_are_not_copied_either(tmp_path: Path) -> None:
    models: dict[str, Model | Ensemble] = {"work": one(WORK, "STRING"), "e": chain("work", "work", datatype="STRING")}
    (answer,), found = asked(tmp_path, models, np.array([b"alpha", b"beta"], np.object_))
    assert copies(found) == 0
    assert answer["Y"].tolist() == [b"alpha", b"beta"]


def test_a_tensor_that_a_model_passes_on_is_the_same_through_all_steps(tmp_path: Path) -> None:
    models: dict[str, Model | Ensemble] = {"pass": one(PASS), "e": chain("pass", "pass", "pass")}
    (answer,), found = asked(tmp_path, models, np.zeros(8, np.float32))
    assert len({each for pair in found for each in pair}) == 1
    assert answer["Y"].tolist() == [3.0] * 8


def test_two_readers_of_one_tensor_have_a_copy_each(tmp_path: Path) -> None:
    steps = (step("work", "X", "t", 0), step("pass", "t", "Y", 1), step("pass", "t", "Z", 2))
    models: dict[str, Model | Ensemble] = {"work": one(WORK), "pass": one(PASS), "e": ensemble(steps, ("Y", "Z"))}
    (answer,), ((_, made), (first, _), (second, _)) = asked(tmp_path, models, np.zeros(5_000, np.float32))
    # Memory of a copy that nobody reads any more may be used again.
    assert made not in {first, second}
    assert answer["Y"].max() == answer["Z"].max() == 1


def test_only_the_input_that_others_read_is_copied(tmp_path: Path) -> None:
    """t goes to the join and to the caller, u to the join alone."""
    steps = (
        step("work", "X", "t", 0),
        step("work", "t", "u", 1),
        Step("join", {"IN0": "t", "IN1": "u"}, {"OUT": "Y", "AT": "AT2"}),
    )
    models: dict[str, Model | Ensemble] = {
        "work": one(WORK),
        "join": Model((tensor("IN0", (-1,)), tensor("IN1", (-1,))), (tensor("OUT", (-1,)), AT), body=JOIN),
        "e": ensemble(steps, ("Y", "t")),
    }
    _, ((_, first), (read, second), (left, right)) = asked(tmp_path, models, np.zeros(5_000, np.float32))
    assert right == second
    assert first not in (read, left)


@pytest.mark.parametrize(
    "kept",
    [
        "np.zeros(8_000, np.float32); KEPT.flags.writeable = False",
        "np.frombuffer(bytes(32_000), np.float32)",
        "np.frombuffer(bytes(32), np.float32)",
        "np.memmap('{file}', np.float32, 'r')",
    ],
    ids=["array", "bytes", "few bytes", "mapped file"],
)
def test_what_a_model_keeps_is_copied_before_the_next_writes_to_it(tmp_path: Path, kept: str) -> None:
    file = tmp_path / "kept"
    file.write_bytes(bytes(32_000))
    models: dict[str, Model | Ensemble] = {
        "constant": one(CONSTANT % kept.format(file=file)),
        "pass": one(PASS),
        "e": chain("constant", "pass"),
    }
    answers, found = asked(tmp_path / "models", models, np.zeros(4, np.float32), times=2)
    assert copies(found) == 1
    # The second request sees what the first one saw.
    assert [answer["Y"].max() for answer in answers] == [1.0, 1.0]
