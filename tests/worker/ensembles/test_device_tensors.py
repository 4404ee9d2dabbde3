"""Tensors on a device between the steps of an ensemble: they stay there while every reader takes them there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_device import DeviceTensor
from queued_requests import RecordedRequest
from runner_bench import until

from ensemble_repository import Ensemble, Step, config, tensor
from isochrone.clock import now_ns
from isochrone.devices.device_array import DeviceArray, dtype_of
from isochrone.models.repository.repository import Repository
from isochrone.protocol.messages import InferRequest, Plan
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.load_parameters import LoadParameters
from isochrone.worker.response_cache import ResponseCache

#: Adds one on the device, and returns what it saw: whether its input was there, and the addresses of both tensors.
SOURCE = """
import fake_device
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "IN")
        array = fake_device.to_device(given.as_numpy()) if given.is_cpu() else fake_device.from_dlpack(given)
        made = array.plus(1)
        seen = np.array([not given.is_cpu(), array.address, made.address], np.int64)
        shape = [1, 3] if array.shape != (4,) else [3]
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor.from_dlpack("OUT", made), pb_utils.Tensor("SAW", seen.reshape(shape))]
        )
"""
STREAM = SOURCE.replace(
    "return [self.answer(request) for request in requests]",
    """for request in requests:
            sender = request.get_response_sender()
            sender.send(self.answer(request))
            sender.send(self.answer(request), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)""",
)
OURS = """
class Model:
    def infer(self, inputs):
        return {"OUT": inputs["IN"] + 1}
"""
ON_DEVICE = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'
THREAD = 'parameters { key: "inline" value { string_value: "false" } }\n'
FOUR = np.zeros(4, np.float32)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """``on``: takes tensors on the device; ``off``: does not."""
    write(tmp_path / "on", SOURCE, ON_DEVICE + THREAD)
    write(tmp_path / "off", SOURCE, THREAD)
    write(tmp_path / "rows", SOURCE, ON_DEVICE, batch=8)
    write(tmp_path / "many", STREAM, ON_DEVICE + "model_transaction_policy { decoupled: true }\n")
    write(tmp_path / "cached", SOURCE, ON_DEVICE + "response_cache { enable: true }\n")
    write(tmp_path / "reshaped", SOURCE, ON_DEVICE, reshape="reshape { shape: [2, 2] }")
    write(tmp_path / "ours", OURS, "", saw=False)
    DeviceTensor.copied_by.clear()
    return tmp_path


def write(directory: Path, source: str, more: str, *, batch: int = 0, saw: bool = True, reshape: str = "") -> None:
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(source)
    outputs = [tensor("OUT", (4,), more=reshape)]
    if saw:
        outputs.append(tensor("SAW", (1, 3) if reshape else (3,), "INT64"))
    inputs = (tensor("IN", (4,), more=reshape),)
    (directory / "config.pbtxt").write_text(
        config(directory.name, inputs, outputs, batch, f'backend: "python"\n{more}')
    )


def chain(*models: str) -> tuple[Step, ...]:
    """X → t1 → t2 … → Y; what each step but ours saw is S0, S1, …"""
    names = ["X", *(f"t{number}" for number in range(1, len(models))), "Y"]
    return tuple(step(model, *names[number : number + 2], number) for number, model in enumerate(models))


def step(model: str, given: str, made: str, number: int) -> Step:
    return Step(model, {"IN": given}, {"OUT": made} if model == "ours" else {"OUT": made, "SAW": f"S{number}"})


class Streamed(RecordedRequest):
    takes_many = True


class OnDevice(RecordedRequest):
    """Of a caller who takes Y on the device: it is in CUDA shared memory."""

    def keeps_on_device(self, output: str) -> bool:
        return output == "Y"


def asked(
    repository: Path,
    steps: tuple[Step, ...],
    outputs: tuple[str, ...] = ("Y",),
    *,
    streams: bool = False,
    kind: type[RecordedRequest] = RecordedRequest,
) -> list[Any]:
    """The answers to one request; ``outputs`` beside what the steps saw."""
    made = [tensor(name) for name in outputs]
    for number, each in enumerate(steps):
        if "SAW" in each.outputs:
            made.append(tensor(f"S{number}", (1, 3) if each.model == "reshaped" else (3,), "INT64"))
    more = "model_transaction_policy { decoupled: true }" if streams else ""
    Ensemble((tensor("X"),), tuple(made), steps, more=more).write(repository / "e", "worker")

    async def play() -> list[Any]:
        catalog = Catalog(Repository([repository]), ResponseCache(1 << 20), 30)
        try:
            names = {"e", *(each.model for each in steps)}
            assert await catalog.load_all({name: LoadParameters() for name in names}) == {}
            plan = Plan("e", "", (("X", "FP32", (4,)),), None)
            request: InferRequest = (Streamed if streams else kind)(plan, {"X": FOUR.copy()}, now_ns())
            catalog.find("e", "").submit(request)
            await until(lambda: request.answers and (not streams or request.answers[-1] == "finished"))
            return request.answers  # type: ignore[attr-defined, no-any-return]
        finally:
            await catalog.close(5)

    return asyncio.run(asyncio.wait_for(play(), 60))


def was_on_device(answer: dict[str, Any], number: int) -> bool:
    return bool(answer[f"S{number}"].reshape(-1)[0])


def test_it_stays_on_the_device_from_step_to_step(repository: Path) -> None:
    (answer,) = asked(repository, chain("on", "on", "on"))
    assert [was_on_device(answer, number) for number in range(3)] == [False, True, True]
    addresses = [answer[f"S{number}"].tolist()[1:] for number in range(3)]
    assert addresses[0][1] == addresses[1][0]
    assert addresses[1][1] == addresses[2][0]
    np.testing.assert_array_equal(answer["Y"], FOUR + 3)
    # Once, for the caller; not on the event loop's thread.
    assert [name.rpartition("-")[0] for name in DeviceTensor.copied_by] == ["on-1"]


@pytest.mark.parametrize("reader", ["off", "ours", "cached"])
def test_a_reader_that_takes_arrays_of_the_host_gets_one(repository: Path, reader: str) -> None:
    (answer,) = asked(repository, chain("on", reader))
    assert "S1" not in answer or not was_on_device(answer, 1)
    np.testing.assert_array_equal(answer["Y"], FOUR + 2)
    assert DeviceTensor.copied_by[0].rpartition("-")[0] == "on-1"


def test_one_such_reader_of_several_is_enough(repository: Path) -> None:
    steps = (step("on", "X", "t", 0), step("on", "t", "Y", 1), step("off", "t", "Z", 2))
    (answer,) = asked(repository, steps, ("Y", "Z"))
    assert not was_on_device(answer, 1)
    assert not was_on_device(answer, 2)
    np.testing.assert_array_equal(answer["Y"], FOUR + 2)
    np.testing.assert_array_equal(answer["Z"], FOUR + 2)


def test_several_readers_share_the_memory(repository: Path) -> None:
    steps = (step("on", "X", "t", 0), step("on", "t", "Y", 1), step("on", "t", "Z", 2))
    (answer,) = asked(repository, steps, ("Y", "Z"))
    assert answer["S1"].tolist()[:2] == answer["S2"].tolist()[:2] == [1, answer["S0"].tolist()[2]]


def test_what_the_caller_reads_comes_to_the_host(repository: Path) -> None:
    (answer,) = asked(repository, chain("on", "on"), ("Y", "t1"))
    assert not was_on_device(answer, 1)
    assert type(answer["t1"]) is np.ndarray
    np.testing.assert_array_equal(answer["t1"], FOUR + 1)


def test_what_the_caller_takes_on_the_device_stays_there(repository: Path) -> None:
    (answer,) = asked(repository, chain("on", "on"), ("Y", "t1"), kind=OnDevice)
    assert type(answer["Y"]) is DeviceArray
    assert type(answer["t1"]) is np.ndarray
    np.testing.assert_array_equal(answer["Y"].foreign.get(), FOUR + 2)


@pytest.mark.parametrize("models", [("on", "rows", "on"), ("on", "reshaped", "on")])
def test_other_shapes_are_the_same_memory(repository: Path, models: tuple[str, ...]) -> None:
    (answer,) = asked(repository, chain(*models))
    seen = [answer[f"S{number}"].reshape(-1).tolist() for number in range(3)]
    assert [bool(each[0]) for each in seen] == [False, True, True]
    assert [seen[0][2], seen[1][2]] == [seen[1][1], seen[2][1]]
    np.testing.assert_array_equal(answer["Y"], FOUR + 3)


def test_every_response_of_a_decoupled_step_stays_there(repository: Path) -> None:
    *answers, end = asked(repository, chain("many", "on"), streams=True)
    assert end == "finished"
    assert [was_on_device(answer, 1) for answer in answers] == [True, True]


class Brain:
    """A tensor of a type that numpy lacks."""

    shape = (2, 3)
    dtype = "torch.bfloat16"


class Odd(Brain):
    dtype = "torch.float8_of_tomorrow"


def test_types_and_sizes() -> None:
    array = DeviceArray(Brain())
    assert (array.ndim, array.size, array.nbytes, array.dtype.name) == (2, 6, 12, "bfloat16")
    with pytest.raises(TypeError, match="expected a type that numpy has, or bfloat16, given float8_of_tomorrow"):
        dtype_of(Odd())
