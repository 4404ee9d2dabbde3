"""Triton's generate extension: plain JSON objects instead of tensors with shapes and datatypes.

Maps the body of POST …/generate to the inputs that …/infer would have, and the outputs back to an object. Keys that
name an input are tensors; every other key is a request parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isochrone.errors import InvalidArgument
from isochrone.protocol.tensors.datatypes import name_of, shown
from isochrone.protocol.tensors.json_values import flatten, from_json, to_json

if TYPE_CHECKING:
    from isochrone.protocol.messages import Parameter, Tensors

#: (name, datatype, dimensions without the batch's) of an input; -1 is a dimension of any size.
InputDeclaration = tuple[str, str, Sequence[int]]

_PARAMETERS = "parameters"
_ID = "id"


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A decoded generate object."""

    id: str
    inputs: Tensors
    parameters: dict[str, Parameter]


def read_generate(body: object, declared: Sequence[InputDeclaration], max_batch_size: int) -> GenerateRequest:
    """Read the inputs, parameters and id of a generate object. The key "parameters" may hold inputs and parameters too.

    Missing inputs are not an error here: the model's signature is checked later.
    """
    if not isinstance(body, dict):
        raise InvalidArgument(f"generate: expected a JSON object, given {shown(body)}")
    inputs: Tensors = {}
    parameters: dict[str, Parameter] = {}
    by_name = {name: (datatype, dims) for name, datatype, dims in declared}
    request_id = ""
    for key, value in _pairs(body, by_name):
        if key in inputs or key in parameters:
            raise InvalidArgument(
                f"generate: input or parameter {shown(key)} already exists in request, once inside 'parameters'"
            )
        declaration = by_name.get(key)
        if declaration is not None:
            datatype, dims = declaration
            inputs[key] = _tensor(key, datatype, dims, value, max_batch_size > 0)
        elif key == _ID:
            if not isinstance(value, str):
                raise InvalidArgument(f"generate: key 'id': expected a string, given {shown(value)}")
            request_id = value
        elif isinstance(value, bool | int | float | str):
            parameters[key] = value
        else:
            raise InvalidArgument(
                f"generate: key {shown(key)} is no input of the model, and as a parameter "
                f"it must be a string, number or boolean, given {shown(value)}"
            )
    return GenerateRequest(request_id, inputs, parameters)


def write_generate(outputs: Tensors, model_name: str, model_version: str, request_id: str = "") -> dict[str, Any]:
    """The JSON object of an answer: an output with one element is that element, any other is a flat list."""
    answer: dict[str, Any] = {_ID: request_id} if request_id else {}
    answer.update(model_name=model_name, model_version=model_version)
    for name, array in outputs.items():
        try:
            values = to_json(array, name_of(array.dtype))
        except InvalidArgument as error:
            # Generate answers have no binary form; infer answers do.
            raise InvalidArgument(f"generate: output '{name}': {error}, from infer") from None
        answer[name] = values[0] if array.size == 1 else values
    return answer


def _pairs(body: dict[str, Any], by_name: Mapping[str, object]) -> list[tuple[str, Any]]:
    nested = body.get(_PARAMETERS)
    if _PARAMETERS not in body or _PARAMETERS in by_name:
        return list(body.items())
    if not isinstance(nested, dict):
        raise InvalidArgument(f"generate: key 'parameters': expected a JSON object, given {shown(nested)}")
    return [(key, value) for key, value in body.items() if key != _PARAMETERS] + list(nested.items())


def _tensor(key: str, datatype: str, dims: Sequence[int], value: object, batched: bool) -> Any:
    data = value if isinstance(value, list) else [value]
    flat, nesting = flatten(f"generate: input '{key}'", data)
    shape = _fit(key, len(flat), dims, batched)
    return from_json(key, datatype, shape, data if len(nesting) > 1 else flat)


def _fit(key: str, count: int, dims: Sequence[int], batched: bool) -> list[int]:
    """The declared shape, with its variable dimensions chosen so that it has ``count`` elements.

    Triton's rule: the innermost variable dimension takes all remaining elements, the others are 1. The batch is the
    outermost variable dimension, so it is 1 unless all of the model's own dimensions are fixed.
    """
    shape = [-1, *dims] if batched else list(dims)
    left = count
    for dimension in shape:
        if dimension > 0 and left % dimension == 0:
            left //= dimension
        elif dimension >= 0:
            raise _misfit(key, count, shape)
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] == -1:
            shape[axis], left = left, 1
    if left != 1:
        raise _misfit(key, count, list(dims))
    return shape


def _misfit(key: str, count: int, shape: list[int]) -> InvalidArgument:
    return InvalidArgument(
        f"generate: The schema can not convert input '{key}' to tensor with proper shape: "
        f"expected elements for shape {shape}, given {count}"
    )
