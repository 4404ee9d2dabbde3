"""Inputs as requests carry them, for calls of a model without a request: learning its outputs and warm-up.

Numbers of a request are read-only views of received bytes. A model that writes to its inputs must fail before it
serves, and not at its first request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from isochrone.protocol.tensors.binary import from_binary
from isochrone.protocol.tensors.datatypes import name_of

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors

_READ_ONLY = re.compile(r"read-?only", re.IGNORECASE)


def as_received(inputs: Tensors) -> Tensors:
    """Copies of the inputs, as a transport makes them."""
    return {name: _received(name, array) for name, array in inputs.items()}


def _received(name: str, array: Tensor) -> Tensor:
    datatype = name_of(array.dtype)
    if datatype == "BYTES":
        return array  # a request's is writable, too: its elements are objects
    return from_binary(name, datatype, array.shape, memoryview(array.tobytes()))


def writing_hint(error: BaseException) -> str:
    """What to do about a model that wrote to an input; "" for an error of another kind."""
    if _READ_ONLY.search(str(error)) is None:
        return ""
    return " (inputs are read-only; a model that changes one needs a copy of it: x = x.copy())"
