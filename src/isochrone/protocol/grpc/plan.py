"""The ``GrpcPlan``: a ModelInferRequest message without its tensors; and the inputs of a message that is not plain.

``decoder`` memoises plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from isochrone.errors import InvalidArgument
from isochrone.protocol.messages import OutputChoice, Plan
from isochrone.protocol.parameters import PLAN_PARAMETERS, read_parameters
from isochrone.protocol.shared_memory_requests import UNSHAREABLE, SharedInput, read_input, regions_named
from isochrone.protocol.tensors.binary import from_binary, from_contents
from isochrone.protocol.tensors.datatypes import element_count, item_size, numpy_of
from isochrone.wire.exchange import Buffer

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.protocol.services.service import InferenceService


class Answer:
    """The bytes around the tensors of an answer; they depend only on the model, its version and the shapes."""

    __slots__ = ("framed", "prefixes", "size")

    def __init__(self, prefixes: list[bytes], size: int) -> None:
        #: The bytes before each output's raw bytes; the first contains the message's head.
        self.prefixes = prefixes
        #: Bytes of the whole message.
        self.size = size
        #: The first prefix behind the gRPC prefix of a message without an id.
        self.framed = b"\0" + size.to_bytes(4, "big") + prefixes[0]

    def framed_with(self, id_field: bytes) -> bytes:
        """The same for a message with an id, which comes first."""
        return b"\0%b%b%b" % ((self.size + len(id_field)).to_bytes(4, "big"), id_field, self.prefixes[0])


class GrpcPlan(Plan):
    """A decoded message head."""

    __slots__ = (
        "answers",
        "bools",
        "choices",
        "is_plain",
        "is_regional",
        "pinned",
        "regions",
        "shared_inputs",
        "sources",
    )

    #: (name, numpy type, shape, count, byte size) of each input; the size is 0 from the first that is not plain.
    sources: list[Any]
    choices: dict[str, OutputChoice]
    #: Every input is raw and of fixed size, every output is requested raw: the fast path.
    is_plain: bool
    #: Every input and every requested output is in shared memory, and every input of fixed size: a fast path, too.
    is_regional: bool
    shared_inputs: list[SharedInput]
    #: BOOL inputs: their bytes may be other than 0 and 1, and are normalised on every path.
    bools: tuple[str, ...]
    #: Shared memory that the request reads or writes.
    regions: tuple[str, ...]
    answers: dict[Any, Answer]
    #: By version: the plans of calls whose authority pins it (``pinned_plans``); None: there was none.
    pinned: dict[str, GrpcPlan] | None

    def copy(self) -> GrpcPlan:
        other = GrpcPlan(self.model_name, self.model_version, self.inputs, self.outputs)
        self._copy_fields_to(other)
        other.sources, other.choices = self.sources, self.choices
        other.is_plain, other.bools, other.regions = self.is_plain, self.bools, self.regions
        other.is_regional, other.shared_inputs = self.is_regional, self.shared_inputs
        other.answers, other.pinned = self.answers, self.pinned
        return other


def plain_parameters(parameters: Any) -> dict[str, Any]:
    """A protobuf parameter map as plain values."""
    result: dict[str, Any] = {}
    for key, value in parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is not None:
            result[key] = getattr(value, kind)
    return result


def plan_of(message: Any) -> GrpcPlan:
    """Decode a message head that is not memoised."""
    described: list[tuple[str, str, tuple[int, ...]]] = []
    sources: list[Any] = []
    regions: list[object] = []
    shared: list[SharedInput] = []
    plain = True
    for item in message.inputs:
        shape = tuple(item.shape)
        count = element_count(shape, f"input '{item.name}'")
        described.append((item.name, item.datatype, shape))
        dtype = numpy_of(item.datatype)
        if item.datatype == "BYTES" or item.parameters or item.HasField("contents"):
            plain = False
            if "shared_memory_region" in item.parameters:
                regions.append(item.parameters["shared_memory_region"].string_param)
                if item.datatype not in UNSHAREABLE:
                    shared.append(SharedInput(item.name, item.datatype, shape, *region_of(item)))
        sources.append((item.name, dtype, shape, count, count * item_size(item.datatype) if plain else 0))
    choices: dict[str, OutputChoice] = {}
    for output in message.outputs:
        choice = _choice(output)
        choices[output.name] = choice
        plain = plain and choice.is_plain
    if len(choices) != len(message.outputs):
        raise InvalidArgument("'outputs' names an output twice")
    parameters = plain_parameters(message.parameters) if message.parameters else {}
    plan = GrpcPlan(
        message.model_name,
        message.model_version,
        tuple(described),
        tuple(choices) or None,
        {key: value for key, value in parameters.items() if key not in PLAN_PARAMETERS},
        **read_parameters(parameters),
    )
    plan.sources = sources
    plan.choices = choices
    plan.is_plain = plain
    plan.shared_inputs = shared
    plan.is_regional = (
        len(shared) == len(described) > 0
        and bool(choices)
        and all(choice.region and not choice.classes for choice in choices.values())
    )
    plan.bools = tuple(name for name, datatype, _ in described if datatype == "BOOL")
    plan.regions = regions_named(regions, choices)
    plan.answers = {}
    plan.pinned = None
    return plan


def with_parameters(plan: GrpcPlan, message: Any) -> GrpcPlan:
    """The plan with the request parameters of another message."""
    parameters = plain_parameters(message.parameters)
    fields = read_parameters(parameters)
    other = plan.copy()
    other.step_plans, other.pinned = None, None
    # The answers of ensembles differ by sequence.
    other.answers = {}
    other.parameters = {key: value for key, value in parameters.items() if key not in PLAN_PARAMETERS}
    other.priority = fields.get("priority", 0)
    other.timeout_ns = fields.get("timeout_ns", 0)
    other.sequence_id = fields["sequence_id"]
    other.sequence_start = fields.get("sequence_start", False)
    other.sequence_end = fields.get("sequence_end", False)
    return other


def _choice(output: Any) -> OutputChoice:
    parameters = plain_parameters(output.parameters)
    for key in ("classification", "shared_memory_offset", "shared_memory_byte_size"):
        value = parameters.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidArgument(f"output '{output.name}': parameter '{key}': expected an int64 ≥ 0, given {value!r}")
    region = parameters.get("shared_memory_region", "")
    if region and parameters.get("classification"):
        raise InvalidArgument(
            f"output '{output.name}': Output can't set both 'shared_memory_region' and 'classification'"
        )
    return OutputChoice(
        True,
        parameters.get("classification", 0),
        region,
        parameters.get("shared_memory_offset", 0),
        parameters.get("shared_memory_byte_size", 0),
    )


def region_of(item: Any) -> tuple[Any, Any, Any]:
    """Region, offset and size of an input in shared memory, of whatever types the caller chose."""
    parameters = plain_parameters(item.parameters)
    offset, size = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size", 0)
    return parameters.get("shared_memory_region"), offset, size


def read_inputs(plan: GrpcPlan, message: Any, raw: Sequence[Buffer], service: InferenceService) -> Tensors:
    """Read the inputs off the fast path: typed contents, BYTES, shared memory, or raw."""
    inputs: Tensors = {}
    used = 0
    typed = any(item.HasField("contents") for item in message.inputs)
    if typed and raw:
        raise InvalidArgument(
            "contents field must not be specified when using raw_input_contents for model "
            f"'{plan.model_name}': send one of them"
        )
    for item, (name, datatype, shape) in zip(message.inputs, plan.inputs, strict=True):
        if "shared_memory_region" in item.parameters:
            inputs[name] = read_input(SharedInput(name, datatype, shape, *region_of(item)), plan, service)
        elif item.HasField("contents"):
            inputs[name] = from_contents(name, datatype, shape, item.contents)
        elif used < len(raw):
            inputs[name] = from_binary(name, datatype, shape, memoryview(raw[used]), plan.model_name)
            used += 1
        elif element_count(shape, name) == 0 and not raw:
            inputs[name] = from_binary(name, datatype, shape, b"")
        else:
            raise InvalidArgument(
                f"expected raw_input_contents for input '{name}' of model '{plan.model_name}', given {len(raw)} entries"
            )
    if used != len(raw):
        raise InvalidArgument(
            f"raw_input_contents: expected {used} entries for model '{plan.model_name}', given {len(raw)}"
        )
    if len(inputs) != len(plan.inputs):
        raise InvalidArgument("the request names an input twice")
    return inputs
