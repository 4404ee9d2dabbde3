"""A model's response as the worker sends it: arrays by name, with the parameters of the response."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Union, cast

import numpy as np

from isochrone.devices.device_array import DeviceArray, on_host
from isochrone.errors import IsochroneError
from isochrone.protocol.response_outputs import ResponseOutputs
from isochrone.worker.backends.python.triton.responses import InferenceResponse
from isochrone.worker.backends.python.triton.tensors import Tensor

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.protocol.messages import Tensor as Array

#: Outputs, an error, or None: the model sends the answer itself.
Answer = Union["Tensors", IsochroneError, None]


def answer_of(
    response: InferenceResponse, wanted: set[str], request: InferRequest, *, is_returned: bool = False
) -> Tensors:
    """The wanted outputs of a response; as in Triton, others are left out and missing ones are missing.

    The arrays are the caller's: a model may fill its own buffer anew for each response, before the last one is written.
    ``is_returned``: the run is over, and the request has no other response.
    """
    outputs: Tensors = {}
    for tensor in response.output_tensors():
        name = tensor.name()
        if name in wanted:
            if tensor.host_array is None and request.keeps_on_device(name):
                outputs[name] = cast("Array", DeviceArray(tensor.foreign))
            else:
                is_free = _is_sole(tensor) or (is_returned and _is_passed_on(tensor, request))
                outputs[name] = sendable(tensor) if is_free else sendable(tensor).copy()
    parameters = response.given_parameters
    return ResponseOutputs(outputs, parameters) if parameters else outputs


def sendable(tensor: Tensor) -> Array:
    """A tensor's array in the host's memory, of a type that the protocol has."""
    array = tensor.own_array
    if array is None:
        return on_host(tensor.foreign)
    return _strings(array) if array.dtype.kind in "OS" else array


def _is_sole(tensor: Tensor) -> bool:
    """Whether nothing but the tensor refers to its memory. In doubt it says no."""
    array = tensor.host_array
    if array is None:
        return True  # it is copied from the device
    base = array.base
    if base is None:
        return sys.getrefcount(array) <= _SOLE
    if type(base) is not np.ndarray or base.base is not None:
        return False
    return sys.getrefcount(array) <= _SOLE and sys.getrefcount(base) <= _SOLE_BASE


def _is_passed_on(tensor: Tensor, request: InferRequest) -> bool:
    """Whether a model returns what it was given: the memory is the request's."""
    array = tensor.host_array
    return any(given is array for given in request.inputs.values())


def _counts() -> tuple[int, int]:
    """References that ``_is_sole`` sees of an array that only a tensor has, and of that one's base."""
    tensor = Tensor("measured", np.zeros(2).reshape(1, 2))
    array = tensor.host_array
    assert array is not None
    base = array.base
    return sys.getrefcount(array), sys.getrefcount(base)


_SOLE, _SOLE_BASE = _counts()


def _strings(array: Array) -> Array:
    """An object array of ``bytes``: Triton writes other objects as text."""
    flat = array.reshape(-1)
    if array.dtype.kind == "O" and all(type(element) is bytes for element in flat):
        return array
    encoded = np.empty(array.shape, np.object_)
    target = encoded.reshape(-1)
    for position, element in enumerate(flat.tolist()):
        target[position] = element if isinstance(element, bytes) else str(element).encode()
    return encoded
