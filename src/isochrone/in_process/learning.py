"""Learns the outputs of a model by calling it: once with its example, or with zeros.

Every size of an output is as the call gave it. If an input has free sizes (-1), the model is called a second time with
each of them one larger: output sizes that differ between the two calls become -1. The arrays are read-only, as those of
requests are.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.errors import ConfigError, InvalidArgument, ModelFailed
from isochrone.in_process.tensor_types import TensorType, type_of
from isochrone.protocol.tensors.datatypes import name_of
from isochrone.worker.backends.tensors.received_inputs import as_received, writing_hint

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensor, Tensors


#: Stands for the first response of a generator that gives none.
_NO_RESPONSE = object()


def learn_outputs(
    infer: Any, inputs: Mapping[str, TensorType], example: Tensors | None, batched: bool, where: str
) -> dict[str, TensorType]:
    """The outputs of ``infer``. ``batched``: it takes and returns a first axis of rows."""
    first = example or {name: type_.zeros(1) for name, type_ in inputs.items()}
    learned = _outputs(infer, first, batched, where)
    if any(-1 in type_.dims for type_ in inputs.values()):
        larger = {name: _larger(array, inputs[name].dims) for name, array in first.items()}
        again = _outputs(infer, larger, batched, where)
        learned = {name: _merged(name, type_, again.get(name), where) for name, type_ in learned.items()}
    return learned


def _larger(array: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The array with its last entry repeated along every free axis."""
    for axis, size in enumerate(dims):
        if size == -1:
            array = np.append(array, array.take([-1], axis), axis)
    return array


def _merged(name: str, one: TensorType, other: TensorType | None, where: str) -> TensorType:
    if other is None or other.datatype != one.datatype or len(other.dims) != len(one.dims):
        given = f"{one} and, with larger inputs, {other or 'none'}"
        raise ConfigError(where, f"outputs[{name!r}]", "one datatype and rank for all inputs; state outputs", given)
    sizes = zip(one.dims, other.dims, strict=True)
    return TensorType(one.datatype, tuple(a if a == b else -1 for a, b in sizes))


def _outputs(infer: Any, inputs: Tensors, batched: bool, where: str) -> dict[str, TensorType]:
    if batched:
        inputs = {name: array[np.newaxis] for name, array in inputs.items()}
    try:
        results = _first_response(infer(as_received(inputs)))
    except Exception as error:
        shapes = ", ".join(f"{name} {type_of(array)}" for name, array in inputs.items())
        raise ModelFailed(
            f"{where}: the call that learns the outputs, with {shapes}, raised {type(error).__name__}: {error}"
            f"{writing_hint(error)}"
        ) from error
    if results is _NO_RESPONSE:
        expected = "at least one response to the example (without one: to zeros), or outputs to be stated"
        raise ConfigError(where, "the model's result", expected, "none")
    if not isinstance(results, Mapping) or not results:
        given = repr(results) if results is None else f"a {type(results).__name__}"
        raise ConfigError(where, "the model's result", "a dict of output name to array", given)
    return {str(name): _output(str(name), value, batched, where) for name, value in results.items()}


def _output(name: str, value: Any, batched: bool, where: str) -> TensorType:
    array, key = np.asarray(value), f"output {name!r}"
    try:
        datatype = name_of(array.dtype)
    except InvalidArgument as error:
        raise ConfigError(where, key, "an array of a datatype of the protocol", str(error)) from None
    if batched and (not array.ndim or array.shape[0] != 1):
        expected = "a first axis of 1, the rows of the batch that it was called with"
        raise ConfigError(where, key, expected, f"shape {list(array.shape)}")
    return TensorType(datatype, tuple(array.shape[1:] if batched else array.shape))


def _first_response(results: Any) -> Any:
    """The result itself; of a generator, the first response."""
    if isinstance(results, AsyncIterator):
        return _first_async(results)
    if not hasattr(results, "__next__"):
        return results
    try:
        return next(results, _NO_RESPONSE)
    finally:
        results.close()


def _first_async(responses: AsyncIterator[Any]) -> Any:
    """On a thread: the caller's may already run an event loop."""
    found: list[Any] = []
    problems: list[Exception] = []

    async def first() -> None:
        try:
            found.append(await anext(responses, _NO_RESPONSE))
        finally:
            if hasattr(responses, "aclose"):
                await responses.aclose()

    def run() -> None:
        try:
            asyncio.run(first())
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=run, name="isochrone-learning")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return found[0]
