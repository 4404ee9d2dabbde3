"""Decodes ModelInferRequest messages into a plan, an id and tensors, without copying the tensors.

Agents send the same few messages again and again, with other ids and other data. So the decoder remembers the form of a
message: which bytes every message of that form has (tags, lengths, names, types, shapes), and the places of those that
differ (the id, the parameters, the tensors). A message of a known form costs a few comparisons; parsing it anew takes
five times as long. Forms are found by the model's name and the message's length. Tensors become views of the received
buffer; upb would copy them twice.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tritonclient.grpc import service_pb2

from isochrone.errors import MalformedRequest
from isochrone.protocol.grpc.calls import parse
from isochrone.protocol.grpc.plan import GrpcPlan, plan_of, read_inputs, with_parameters
from isochrone.protocol.shared_memory_requests import read_input
from isochrone.protocol.tensors.binary import truth
from isochrone.protocol.varint import read_varint
from isochrone.wire.exchange import Buffer

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.protocol.services.service import InferenceService

#: Tags of ModelInferRequest: model_name 1, model_version 2, id 3, parameters 4, raw_input_contents 7; all have lengths.
_NAME, _VERSION, _ID, _PARAMETERS, _RAW_INPUT = 0x0A, 0x12, 0x1A, 0x22, 0x3A
#: Bytes of a message, without its tensors, that are remembered; and forms and plans of all models together.
_MAX_HEAD = 4096
_MAX_REMEMBERED = 4096
#: Forms of messages of one model and length: each is compared.
_MAX_ALIKE = 4


class Field(NamedTuple):
    """One field of a message: its tag, and where it, its content and the field after it begin."""

    tag: int
    start: int
    content: int
    end: int


class _Form:
    """What messages of one length for one model have in common, if they have the same fields."""

    __slots__ = ("bools", "fixed", "id", "parameters", "plans", "tensors")

    def __init__(self, plan: GrpcPlan) -> None:
        #: (start, end, bytes): the bytes that they share.
        self.fixed: tuple[tuple[int, int, bytes], ...] = ()
        #: Where the id and the parameters are; start and end are equal if there are none.
        self.id = (0, 0)
        self.parameters = (0, 0)
        #: (name, numpy type, count, start, shape) of each input.
        self.tensors: list[tuple[str, Any, int, int, tuple[int, ...]]] = []
        self.bools = plan.bools
        #: By the bytes of the parameters.
        self.plans: dict[bytes, GrpcPlan] = {}


class InferDecoder:
    """Remembers the forms of the messages that it decoded."""

    __slots__ = ("_forms", "_regional", "_remembered", "_seen", "_service")

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        #: By the field of the model's name; then by length and start of the message.
        self._forms: dict[bytes, dict[tuple[int, int], list[_Form]]] = {}
        #: Messages whose tensors are all in shared memory, without their ids: only places in regions differ in them,
        #: so that their forms have nothing but places to compare.
        self._regional: dict[bytes, GrpcPlan] = {}
        #: Forms and plans in ``_forms``.
        self._remembered = 0
        #: Hashes of forms and parameters that were seen once. What never comes again (a version, a parameter that
        #: differs each time) must not evict what does.
        self._seen: set[int] = set()

    def decode(self, body: Buffer, start: int) -> tuple[GrpcPlan, str, Tensors]:
        """The plan, the id and the inputs of the message that begins at ``start``."""
        size = len(body)
        if size > start + 1:
            by_size = self._forms.get(bytes(body[start : start + 2 + body[start + 1]]))
            if by_size is not None:
                for form in by_size.get((size, start), ()):
                    for begin, end, expected in form.fixed:
                        if body[begin:end] != expected:
                            break
                    else:
                        begin, end = form.parameters
                        plan = form.plans.get(bytes(body[begin:end])) or self._new_plan(form, bytes(body[begin:end]))
                        if plan is None:
                            break
                        begin, end = form.id
                        try:
                            request_id = str(body[begin:end], "utf-8") if begin else ""
                        except UnicodeDecodeError:
                            break  # parsing it reports that
                        inputs = {
                            name: np.frombuffer(body, dtype, count, begin).reshape(shape)
                            for name, dtype, count, begin, shape in form.tensors
                        }
                        for name in form.bools:
                            inputs[name] = truth(inputs[name])
                        return plan, request_id, inputs
            if self._regional and size <= _MAX_HEAD:
                identity = _id_of(body, start)
                known = self._regional.get(bytes(body[start : identity.start]) + bytes(body[identity.end :]))
                if known is not None:
                    try:
                        request_id = str(body[identity.content : identity.end], "utf-8")
                    except UnicodeDecodeError:
                        return self._parse(body, start)  # which reports that
                    shared = {each.name: read_input(each, known, self._service) for each in known.shared_inputs}
                    return known, request_id, shared
        return self._parse(body, start)

    def _parse(self, body: Buffer, start: int) -> tuple[GrpcPlan, str, Tensors]:
        fields = read_fields(body, start)
        head = b"".join([bytes(body[each.start : each.end]) for each in fields if each.tag != _RAW_INPUT])
        raw = [each for each in fields if each.tag == _RAW_INPUT]
        message = parse(service_pb2.ModelInferRequest, head)
        plan = plan_of(message)
        view = memoryview(body)
        inputs = read_inputs(plan, message, [view[each.content : each.end] for each in raw], self._service)
        if len(head) <= _MAX_HEAD and fields:
            if plan.is_plain and len(raw) == len(plan.sources):
                self._remember(body, start, fields, plan)
            elif plan.is_regional and not raw:
                self._remember_regional(body, start, plan, message.id)
        return plan, message.id, inputs

    def _remember(self, body: Buffer, start: int, fields: list[Field], plan: GrpcPlan) -> None:
        name = fields[0]
        ids = [each for each in fields if each.tag == _ID]
        places = [index for index, each in enumerate(fields) if each.tag == _PARAMETERS]
        if name.tag != _NAME or name.content != start + 2 or len(ids) > 1:
            return
        if places and len(places) != places[-1] - places[0] + 1:
            return  # another field is between the parameters
        form = _Form(plan)
        raw = [each for each in fields if each.tag == _RAW_INPUT]
        varying = [(each.content, each.end) for each in ids + raw]
        if ids:
            form.id = varying[0]
        if places:
            form.parameters = (fields[places[0]].start, fields[places[-1]].end)
            varying.append(form.parameters)
        form.fixed = _complement(body, start, sorted(varying))
        if not self._is_second((len(body), form.fixed)):
            return
        for (name_, dtype, shape, count, _), each in zip(plan.sources, raw, strict=True):
            form.tensors.append((name_, dtype, count, each.content, shape))
        self._make_room()
        begin, end = form.parameters
        form.plans[bytes(body[begin:end])] = plan
        by_size = self._forms.setdefault(bytes(body[start : name.end]), {})
        alike = by_size.setdefault((len(body), start), [])
        alike.insert(0, form)
        del alike[_MAX_ALIKE:]

    def _remember_regional(self, body: Buffer, start: int, plan: GrpcPlan, request_id: str) -> None:
        identity = _id_of(body, start)
        if bytes(body[identity.content : identity.end]) != request_id.encode():
            return  # the id is elsewhere
        key = bytes(body[start : identity.start]) + bytes(body[identity.end :])
        if len(body) - start <= _MAX_HEAD and self._is_second(key):
            if len(self._regional) >= _MAX_REMEMBERED:
                self._regional.clear()
            self._regional[key] = plan

    def _new_plan(self, form: _Form, parameters: bytes) -> GrpcPlan | None:
        """The plan with parameters that are new; None: the bytes in their place are something else as well."""
        try:
            if any(each.tag != _PARAMETERS for each in read_fields(parameters, 0)):
                return None
        except MalformedRequest:
            return None
        known = next(iter(form.plans.values()))
        plan = with_parameters(known, parse(service_pb2.ModelInferRequest, parameters))
        if self._is_second((form.fixed, parameters)):
            self._make_room()
            form.plans[parameters] = plan
        return plan

    def _is_second(self, key: Hashable) -> bool:
        """Whether this was seen before."""
        mark = hash(key)
        if mark in self._seen:
            return True
        if len(self._seen) >= _MAX_REMEMBERED:
            self._seen.clear()
        self._seen.add(mark)
        return False

    def _make_room(self) -> None:
        self._remembered += 1
        if self._remembered > _MAX_REMEMBERED:
            self._forms.clear()
            self._remembered = 1


def _id_of(body: Buffer, start: int) -> Field:
    """The field of the id, behind a model's name and version; an empty one where a message has none there."""
    position = start
    while len(body) > position + 1 and body[position] in (_NAME, _VERSION) and body[position + 1] < 128:
        position += 2 + body[position + 1]
    if len(body) > position + 1 and body[position] == _ID and body[position + 1] < 128:
        return Field(_ID, position, position + 2, position + 2 + body[position + 1])
    return Field(_ID, position, position, position)


def _complement(body: Buffer, start: int, varying: list[tuple[int, int]]) -> tuple[tuple[int, int, bytes], ...]:
    """(start, end, bytes) of everything between the places that vary."""
    fixed = []
    for begin, end in [*varying, (len(body), len(body))]:
        if begin > start:
            fixed.append((start, begin, bytes(body[start:begin])))
        start = end
    return tuple(fixed)


def read_fields(body: Buffer, start: int) -> list[Field]:
    """The fields of a message, in the order of its bytes."""
    position, end = start, len(body)
    fields: list[Field] = []
    while position < end:
        begin = position
        tag, content = read_varint(body, position)
        kind = tag & 7
        if kind == 2:
            length, content = read_varint(body, content)
            position = content + length
        elif kind == 0:
            position = read_varint(body, content)[1]
        elif kind == 1:
            position = content + 8
        elif kind == 5:
            position = content + 4
        else:
            raise MalformedRequest(f"failed to parse ModelInferRequest: wire type {kind}")
        if position > end:
            where = "raw_input_contents" if tag == _RAW_INPUT else "a field"
            raise MalformedRequest(f"failed to parse ModelInferRequest: {where} is cut short")
        fields.append(Field(tag, begin, content, position))
    return fields
