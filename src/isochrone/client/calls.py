"""One inference request of a client, before it has the form of a protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from isochrone.client.tracing import trace_headers
from isochrone.errors import ConfigError, InvalidArgument
from isochrone.protocol.tensors.binary import to_binary
from isochrone.protocol.tensors.datatypes import name_of

#: Of calls without any.
NO_HEADERS: Final[Mapping[str, str]] = {}

Parameter = bool | int | float | str


class EncodedInput(NamedTuple):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


class InferCall(NamedTuple):
    """A request that can be sent any number of times."""

    model: str
    version: str
    inputs: tuple[EncodedInput, ...]
    #: Empty: all outputs.
    outputs: tuple[str, ...]
    id: str
    #: Those of the caller, priority and deadline included.
    parameters: Mapping[str, Parameter]
    #: Names in lower case.
    headers: Mapping[str, str]


def make_call(
    model: str,
    inputs: Mapping[str, ArrayLike],
    outputs: Sequence[str] | None,
    version: str,
    deadline_ms: float | None,
    id: str,
    priority: int,
    parameters: Mapping[str, Any] | None,
    headers: Mapping[str, str] | None,
    credential: Mapping[str, str] = NO_HEADERS,
) -> InferCall:
    """Encodes the inputs; raises ``InvalidArgument`` for what no protocol can carry. ``credential``: as for
    ``fields_with``."""
    chosen = {key: _parameter(key, value) for key, value in parameters.items()} if parameters else {}
    if priority:
        chosen["priority"] = priority
    if deadline_ms is not None:
        if not deadline_ms > 0:
            raise ConfigError("infer", "deadline_ms", "milliseconds above 0", repr(deadline_ms))
        # The whole deadline, not what is left of it: equal requests stay equal bytes, which servers recognise. What is
        # left is in a header of each attempt.
        chosen["timeout"] = max(1, round(deadline_ms * 1000))
    given = fields_with(credential, headers)
    return InferCall(
        model,
        str(version),
        tuple([_encoded(name, value) for name, value in inputs.items()]),
        tuple(outputs or ()),
        id,
        chosen,
        trace_headers(given),
    )


def fields_with(credential: Mapping[str, str], headers: Mapping[str, str] | None) -> dict[str, str]:
    """A call's headers, names in lower case. They go before the client's ``credential``, which every call has."""
    given = {name.lower(): value for name, value in headers.items()} if headers else {}
    return {**credential, **given} if credential else given


def _parameter(key: str, value: Any) -> Parameter:
    """The value as both protocols can carry it."""
    if isinstance(value, np.generic):
        value = value.item()
    if type(key) is not str or type(value) not in (bool, int, float, str):
        expected = "a name and a bool, an int, a float or a str"
        raise InvalidArgument(f"parameters[{key!r}]: expected {expected}, given {value!r}")
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        raise InvalidArgument(f"parameters[{key!r}]: expected an int of 64 bits, given {value}")
    return value  # type: ignore[no-any-return]


def _encoded(name: str, value: ArrayLike) -> EncodedInput:
    array = np.asarray(value)
    if array.dtype.kind in "SU" and not isinstance(value, np.ndarray):
        # numpy's own types for text drop zeros at the end.
        array = np.asarray(value, np.object_)
    try:
        datatype = name_of(array.dtype)
        return EncodedInput(name, datatype, array.shape, to_binary(array, datatype))
    except InvalidArgument as error:
        raise InvalidArgument(f"input '{name}': {error}") from None
