"""Decoding of the JSON part of an infer request into a ``RestPlan``, and of the tensors that it describes.

``plan_memo`` memoises plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from isochrone.errors import InvalidArgument
from isochrone.protocol.messages import OutputChoice, Plan
from isochrone.protocol.parameters import PLAN_PARAMETERS, read_parameters
from isochrone.protocol.rest.json_bodies import read_json
from isochrone.protocol.rest.request_json import Header, Input, Output
from isochrone.protocol.shared_memory_requests import SharedInput, read_input, regions_named
from isochrone.protocol.tensors.binary import from_binary, size_mismatch, truth
from isochrone.protocol.tensors.datatypes import element_count, item_size, numpy_of, shown
from isochrone.protocol.tensors.json_values import from_json
from isochrone.wire.exchange import Buffer, Headers

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.protocol.services.service import InferenceService

_KNOWN = PLAN_PARAMETERS | {"binary_data_output"}


_decode_header = msgspec.json.Decoder(Header).decode


class RestPlan(Plan):
    """A decoded JSON part: the positions of the tensors, and the forms of the outputs."""

    __slots__ = ("answers", "binary_default", "bools", "choices", "is_plain", "regions", "sources")

    #: (name, datatype, numpy type, shape, count, start, stop) for binary data, counted from the end of the JSON part;
    #: (name, datatype, region, shape, offset, size, None) for shared memory; an array for JSON data.
    sources: list[Any]
    choices: dict[str, OutputChoice]
    binary_default: bool
    #: Every input is binary and of fixed size, every output plain: the fast path.
    is_plain: bool
    #: BOOL inputs: their bytes may be other than 0 and 1, and are normalised on every path.
    bools: tuple[str, ...]
    #: Shared memory that the request reads or writes.
    regions: tuple[str, ...]
    answers: dict[Any, tuple[Headers, bytes]]

    def copy(self) -> RestPlan:
        other = RestPlan(self.model_name, self.model_version, self.inputs, self.outputs)
        self._copy_fields_to(other)
        other.sources, other.choices, other.binary_default = self.sources, self.choices, self.binary_default
        other.is_plain, other.bools, other.regions = self.is_plain, self.bools, self.regions
        other.answers = self.answers
        return other


def _size_parameter(parameters: dict[str, Any], key: str, where: str) -> int:
    value = parameters.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise InvalidArgument(f"{where}: parameter '{key}': expected a non-negative integer, given {shown(value)}")
    return value


def decode_plan(header: Buffer, model_name: str, model_version: str) -> tuple[RestPlan, str]:
    """Decode a JSON part; the plan, and the request's id."""
    message = read_json(header, _decode_header, Header)
    position = 0
    sources: list[Any] = []
    described: list[tuple[str, str, tuple[int, ...]]] = []
    regions: list[object] = []
    plain = True
    for item in message.inputs:
        shape = tuple(item.shape)
        where = f"input '{item.name}'"
        dtype = numpy_of(item.datatype)
        count = element_count(shape, where)
        described.append((item.name, item.datatype, shape))
        parameters = item.parameters
        size = _size_parameter(parameters, "binary_data_size", where) if "binary_data_size" in parameters else -1
        region = parameters.get("shared_memory_region")
        _check_one_source(item, size >= 0, region is not None)
        if region is not None:
            regions.append(region)
            byte_size = _size_parameter(parameters, "shared_memory_byte_size", where)
            offset = _size_parameter(parameters, "shared_memory_offset", where)
            sources.append((item.name, item.datatype, region, shape, offset, byte_size, None))
            plain = False
        elif size >= 0:
            if item.datatype == "BYTES":
                plain = False
            elif size != count * item_size(item.datatype):
                raise size_mismatch(item.name, model_name, count * item_size(item.datatype), size)
            sources.append((item.name, item.datatype, dtype, shape, count, position, position + size))
            position += size
        elif item.data is not None:
            sources.append(from_json(item.name, item.datatype, shape, item.data))
            plain = False
        else:
            raise InvalidArgument(f"{where} has neither 'data', 'binary_data_size' nor a shared memory region")
    binary_default = message.parameters.get("binary_data_output", False)
    if not isinstance(binary_default, bool):
        raise InvalidArgument(f"parameter 'binary_data_output': expected bool, given {shown(binary_default)}")
    choices: dict[str, OutputChoice] = {}
    for output in message.outputs or ():
        choice = _choice(output, binary_default)
        choices[output.name] = choice
        plain = plain and choice.is_plain
    if message.outputs and len(choices) != len(message.outputs):
        raise InvalidArgument("'outputs' names an output twice")
    if not choices and not binary_default:
        plain = False
    plan = RestPlan(
        model_name,
        model_version,
        tuple(described),
        tuple(choices) or None,
        {key: value for key, value in message.parameters.items() if key not in _KNOWN},
        **read_parameters(message.parameters),
    )
    plan.sources = sources
    plan.choices = choices
    plan.binary_default = binary_default
    plan.is_plain = plain
    plan.bools = tuple(name for name, datatype, _ in described if datatype == "BOOL")
    plan.regions = regions_named(regions, choices)
    plan.answers = {}
    return plan, message.id


def _check_one_source(item: Input, has_binary: bool, has_region: bool) -> None:
    given = {"data": item.data is not None, "binary_data_size": has_binary, "shared_memory_region": has_region}
    named = [f"'{key}'" for key, is_given in given.items() if is_given]
    if len(named) > 1:
        raise InvalidArgument(
            f"input '{item.name}': Input must set only one of the following fields: 'data', 'binary_data_size' in "
            f"'parameters', 'shared_memory_region' in 'parameters'. But set {' '.join(named)}"
        )


def _choice(output: Output, binary_default: bool) -> OutputChoice:
    parameters = output.parameters
    where = f"output '{output.name}'"
    binary = parameters.get("binary_data", binary_default)
    if not isinstance(binary, bool):
        raise InvalidArgument(f"{where}: parameter 'binary_data': expected bool, given {shown(binary)}")
    region = parameters.get("shared_memory_region", "")
    classes = _size_parameter(parameters, "classification", where)
    for key, given in (("classification", classes), ("binary_data", parameters.get("binary_data", False))):
        if region and given:
            raise InvalidArgument(f"{where}: Output can't set both 'shared_memory_region' and '{key}'")
    return OutputChoice(
        binary,
        classes,
        region,
        _size_parameter(parameters, "shared_memory_offset", where),
        _size_parameter(parameters, "shared_memory_byte_size", where),
    )


def read_inputs(plan: RestPlan, body: Buffer, length: int, service: InferenceService) -> Tensors:
    """The tensors that a plan describes, as views of the body where the datatype allows.

    ``length``: the end of the JSON part, where binary data begins.
    """
    inputs: Tensors = {}
    size = len(body) - length
    if plan.is_plain:
        for name, _, dtype, shape, count, start, stop in plan.sources:
            if stop > size:
                raise _short(name, stop - start, size - start)
            inputs[name] = np.frombuffer(body, dtype, count, length + start).reshape(shape)
        for name in plan.bools:
            inputs[name] = truth(inputs[name])
        end = plan.sources[-1][6] if plan.sources else size
    else:
        end = -1
        view = memoryview(body)[length:]
        for described, source in zip(plan.inputs, plan.sources, strict=True):
            if not isinstance(source, tuple):
                inputs[described[0]] = source
                continue
            name, datatype, where, shape, start_or_count, start, stop = source
            if stop is None:
                shared = SharedInput(name, datatype, shape, where, start_or_count, start)
                inputs[name] = read_input(shared, plan, service)
                continue
            if stop > size:
                raise _short(name, stop - start, size - start)
            inputs[name] = from_binary(name, datatype, shape, view[start:stop], plan.model_name)
            end = stop
    if len(inputs) != len(plan.inputs):
        raise InvalidArgument("the request names an input twice")
    if end >= 0 and end != size:
        raise InvalidArgument(f"unexpected additional input data: {size - end} bytes follow the last input")
    return inputs


def _short(name: str, expected: int, given: int) -> InvalidArgument:
    return InvalidArgument(f"unexpected end of the body: input '{name}' announces {expected} bytes, given {given}")
