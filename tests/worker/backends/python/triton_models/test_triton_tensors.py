"""``pb_utils.Tensor``: types, whose memory an array is in, DLPack both ways."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from isochrone.protocol.messages import InferRequest, Plan
from isochrone.worker.backends.python.triton.failures import TritonModelException
from isochrone.worker.backends.python.triton.outputs import answer_of, sendable
from isochrone.worker.backends.python.triton.responses import InferenceResponse
from isochrone.worker.backends.python.triton.tensors import Tensor

REQUEST = InferRequest(Plan("m", "", (), None), "", {}, 0)
NUMBERS = {
    "bool": 1,
    "uint8": 2,
    "uint16": 3,
    "uint32": 4,
    "uint64": 5,
    "int8": 6,
    "int16": 7,
    "int32": 8,
    "int64": 9,
    "float16": 10,
    "float32": 11,
    "float64": 12,
}


@pytest.mark.parametrize(("name", "number"), NUMBERS.items())
def test_types(name: str, number: int) -> None:
    tensor = Tensor("A", np.ones((2, 3), name))
    assert tensor.triton_dtype() == number
    assert tensor.shape() == [2, 3]
    assert tensor.is_cpu()
    assert tensor.as_numpy().dtype == np.dtype(name)


def test_text_and_brain_floats() -> None:
    assert Tensor("A", np.array([b"a"], object)).triton_dtype() == 13
    assert Tensor("A", np.array([b"ab"])).triton_dtype() == 13
    brain = Tensor("A", np.ones(2, ml_dtypes.bfloat16))
    assert brain.triton_dtype() == 14
    with pytest.raises(TritonModelException, match="BF16 and cannot be converted to NumPy"):
        brain.as_numpy()


@pytest.mark.parametrize("array", [np.zeros(2, complex), np.zeros(2, "datetime64[s]"), np.array(["a"])])
def test_types_that_no_tensor_has(array: Any) -> None:
    with pytest.raises(TritonModelException, match="NumPy dtype is not supported"):
        Tensor("A", array)


def test_names() -> None:
    with pytest.raises(TritonModelException, match="cannot be an empty string"):
        Tensor("", np.zeros(1))
    with pytest.raises(TypeError, match="expected a str, given a int"):
        Tensor(5, np.zeros(1))  # type: ignore[arg-type]


def test_arrays_become_contiguous_and_keep_their_shape() -> None:
    assert Tensor("A", np.arange(6).reshape(2, 3).T).as_numpy().flags.c_contiguous
    assert Tensor("A", np.array(5.0)).shape() == []
    assert Tensor("A", np.broadcast_to(np.float32(1), (3,))).as_numpy().tolist() == [1, 1, 1]


# Memory.


def test_a_models_own_array_stays_what_it_is() -> None:
    """Also one over immutable bytes, which no write may reach."""
    writable, constant = np.zeros(2), np.frombuffer(b"literal", np.uint8)
    assert Tensor("A", writable).as_numpy() is writable
    assert not Tensor("A", constant).as_numpy().flags.writeable


def test_a_received_buffer_is_written_in_place() -> None:
    """A large one: a copy of a small one is cheaper than a second view."""
    message = b"0123" * 10_000
    received = np.frombuffer(memoryview(message), np.int32)
    array = Tensor.of_request("A", received, is_shared=False).as_numpy()
    assert array.flags.writeable
    assert array.ctypes.data == received.ctypes.data


@pytest.mark.parametrize("is_shared", [False, True])
def test_arrays_that_others_see_are_copied_before_a_write(is_shared: bool) -> None:
    """Shared ones, and read-only ones that are somebody's array and no buffer."""
    others = np.arange(4, dtype=np.float32)
    others.flags.writeable = is_shared
    tensor = Tensor.of_request("A", others, is_shared)
    tensor.as_numpy()[...] = 9
    assert others.tolist() == [0, 1, 2, 3]
    assert tensor.as_numpy().tolist() == [9, 9, 9, 9]  # the copy is the tensor's from then on


def test_a_received_brain_float_can_be_written_through_dlpack() -> None:
    message = np.ones(4, ml_dtypes.bfloat16).tobytes()
    tensor = Tensor.of_request("A", np.frombuffer(memoryview(message), ml_dtypes.bfloat16), is_shared=False)
    seen = torch.from_dlpack(tensor)
    assert seen.dtype == torch.bfloat16
    seen += 1
    back = Tensor.from_dlpack("B", seen)
    assert back.triton_dtype() == 14
    assert answer_of(InferenceResponse([back]), {"B"}, REQUEST)["B"].astype(np.float32).tolist() == [2, 2, 2, 2]


# DLPack.


@pytest.mark.parametrize("name", [name for name in NUMBERS if name not in ("uint16", "uint32", "uint64")])
def test_torch_both_ways(name: str) -> None:
    tensor = Tensor("A", np.array([[1, 0]], name))
    seen = torch.from_dlpack(tensor)
    assert seen.tolist() == tensor.as_numpy().tolist()
    assert seen.data_ptr() == tensor.as_numpy().ctypes.data
    back = Tensor.from_dlpack("B", seen)
    assert back.name() == "B"
    assert back.triton_dtype() == NUMBERS[name]
    assert back.as_numpy().ctypes.data == seen.data_ptr()


def test_capsules() -> None:
    tensor = Tensor("A", np.arange(3, dtype=np.int16))
    capsule = tensor.to_dlpack()
    assert Tensor.from_dlpack("B", capsule).as_numpy().tolist() == [0, 1, 2]
    with pytest.raises((TritonModelException, RuntimeError)):
        Tensor.from_dlpack("B", capsule)  # it was used
    of_torch = torch.utils.dlpack.to_dlpack(torch.ones(2, dtype=torch.bfloat16))
    assert Tensor.from_dlpack("B", of_torch).triton_dtype() == 14


def test_a_read_only_array_passes_as_a_copy() -> None:
    constant = np.frombuffer(b"abcd", np.uint8)
    seen = torch.from_dlpack(Tensor("A", constant))
    seen[0] = 0
    assert bytes(constant) == b"abcd"


class Foreign:
    def __init__(self, device: int) -> None:
        self._device = device

    def __dlpack__(self, **wishes: Any) -> Any:
        raise AssertionError("nobody may ask for it")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Foreign(8), "DLDevice type 8 is not support by Python backend."),
        (Foreign(2), "on a GPU: expected one of torch or cupy, given a Foreign"),
        ([1, 2], "Provided tensor is not supported"),
        (np.arange(6).reshape(2, 3).T, "DLPack tensor is not contiguous"),
        (torch.arange(6).reshape(2, 3).T, "DLPack tensor is not contiguous"),
        (torch.ones(2, 3, dtype=torch.bfloat16).T, "DLPack tensor is not contiguous"),
        (np.array([b"a"], object), "DLPack tensor cannot be read"),
    ],
)
def test_tensors_of_others_that_cannot_be_taken(given: Any, words: str) -> None:
    with pytest.raises(TritonModelException, match=words):
        Tensor.from_dlpack("A", given)


def test_text_has_no_dlpack() -> None:
    with pytest.raises(TritonModelException, match="does not have support for string tensors"):
        Tensor("A", np.array([b"a"], object)).to_dlpack()


class OnDevice:
    """As a tensor of torch on a GPU looks from outside."""

    dtype = torch.float16
    shape = (2,)

    def __dlpack__(self, **wishes: Any) -> Any:
        return ("capsule", wishes)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1

    def is_contiguous(self) -> bool:
        return True

    def detach(self) -> OnDevice:
        return self

    def cpu(self) -> Any:
        return torch.ones(2, dtype=torch.float16)


def test_a_tensor_on_a_device_stays_there_until_it_is_sent() -> None:
    tensor = Tensor.from_dlpack("A", OnDevice())
    assert not tensor.is_cpu()
    assert (tensor.triton_dtype(), tensor.shape(), tensor.__dlpack_device__()) == (10, [2], (2, 1))
    assert tensor.to_dlpack() == ("capsule", {})
    with pytest.raises(TritonModelException, match="stored in GPU"):
        tensor.as_numpy()
    assert sendable(tensor).tolist() == [1, 1]


class OfCupy:
    """As an array of cupy looks from outside."""

    dtype = np.dtype(np.int32)
    shape = (3,)

    def __init__(self, is_contiguous: bool) -> None:
        self.flags = SimpleNamespace(c_contiguous=is_contiguous)

    def __dlpack__(self, **wishes: Any) -> Any:
        return "capsule"

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def get(self) -> Any:
        return np.arange(3, dtype=np.int32)


def test_arrays_of_cupy() -> None:
    tensor = Tensor.from_dlpack("A", OfCupy(True))
    assert (tensor.triton_dtype(), tensor.shape()) == (8, [3])
    assert sendable(tensor).tolist() == [0, 1, 2]
    with pytest.raises(TritonModelException, match="not contiguous"):
        Tensor.from_dlpack("A", OfCupy(False))


# What callers get.


def test_text_of_any_kind_becomes_bytes() -> None:
    mixed = np.array(["ä", b"\xff", 7, 1.5, None], object)
    assert sendable(Tensor("A", mixed)).tolist() == ["ä".encode(), b"\xff", b"7", b"1.5", b"None"]
    assert sendable(Tensor("A", np.array([[b"ab", b"c"]]))).tolist() == [[b"ab", b"c"]]
    assert sendable(Tensor("A", np.zeros((0, 2), object))).shape == (0, 2)


def sent(array: Any) -> Any:
    return answer_of(InferenceResponse([Tensor("OUT", array)]), {"OUT"}, REQUEST)["OUT"]


def test_an_array_that_the_model_keeps_is_copied() -> None:
    kept = np.zeros(3)
    text = np.array([b"a"], object)
    for given in (kept, kept.reshape(3, 1), kept[1:], kept.view(np.int64)):
        answer = sent(given)
        kept += 1
        assert not np.shares_memory(answer, kept)
    answer = sent(text)
    text[0] = b"b"
    assert answer.tolist() == [b"a"]


def test_an_array_that_nobody_keeps_is_not_copied() -> None:
    for make in (lambda: np.ones(1000) * 2, lambda: (np.ones(1000) * 2).reshape(10, 100)):
        response = InferenceResponse([Tensor("OUT", make())])
        address = response.output_tensors()[0].as_numpy().ctypes.data
        assert answer_of(response, {"OUT"}, REQUEST)["OUT"].ctypes.data == address


def test_outputs_that_nobody_asked_for_are_left_out() -> None:
    response = InferenceResponse([Tensor("A", np.zeros(1)), Tensor("B", np.ones(1))], parameters={"p": 1})
    answer = answer_of(response, {"B", "C"}, REQUEST)
    assert list(answer) == ["B"]
    assert answer.parameters == {"p": 1}  # type: ignore[attr-defined]
