"""What requests of one plan have in common: the worker describes it to the process once.

A caller's requests have the same plan (``protocol.messages``), so that each of them needs only its id, its deadline and
its bytes. The worker says under which number the process keeps a form, and both ends hold the same few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.protocol.messages import InferRequest, Plan
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME
from isochrone.worker.backends.processes.places import Packing, Place, read_places
from isochrone.worker.backends.python.triton.isolation.messages import Form, RequestHead

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.backends.processes.places import Bytes

#: Forms that a process keeps.
_MOST_FORMS = 64
#: Of a form that is not kept.
_NO_NUMBER = -1

#: Name, type and shape of each input.
_Layout = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]


class SentForms:
    """The worker's side: what the process of one session keeps. One thread at a time uses it."""

    def __init__(self) -> None:
        self._known: dict[Plan, tuple[int, _Layout]] = {}
        self._next = 0

    def head(self, number: int, request: InferRequest, packing: Packing) -> RequestHead:
        """Describes a request and adds its inputs to ``packing``. The head must be sent, or ``forget`` be called."""
        plan = request.plan
        known = self._known.get(plan)
        offset = packing.size
        form = None
        # The inputs are looked at as well: nothing says that a plan could not come with others.
        if known is not None and packing.add_alike(request.inputs, known[1]):
            slot = known[0]
        else:
            form = _form_of(plan, request.inputs, packing)
            slot = self._keep(plan, request.inputs)
        # By position: names would cost a third more.
        return RequestHead(number, request.id, slot, form, offset, request.deadline, request.call_chain)

    def forget(self) -> None:
        """What was described may not have been sent."""
        self._known.clear()

    def _keep(self, plan: Plan, inputs: Tensors) -> int:
        if any(array.dtype.kind in "OSU" for array in inputs.values()):
            self._known.pop(plan, None)
            return _NO_NUMBER
        if self._next == _MOST_FORMS:
            self._next = 0
            self._known.clear()
        slot, self._next = self._next, self._next + 1
        self._known[plan] = slot, tuple((name, array.dtype, array.shape) for name, array in inputs.items())
        return slot


def _form_of(plan: Plan, inputs: Tensors, packing: Packing) -> Form:
    start = packing.size
    places = [
        Place(place.name, place.datatype, place.shape, place.offset - start, place.nbytes)
        for place in packing.add(inputs)
    ]
    return Form(
        plan.model_name,
        plan.model_version,
        places,
        plan.outputs,
        plan.parameters,
        plan.priority,
        plan.timeout_ns,
        plan.sequence_id,
        plan.sequence_start,
        plan.sequence_end,
    )


class _KeptForm:
    """A form, as the process uses it."""

    __slots__ = ("_arrays", "_places", "plan")

    def __init__(self, form: Form) -> None:
        self.plan = Plan(
            form.model_name,
            form.model_version,
            (),
            form.outputs,
            form.parameters,
            priority=form.priority,
            timeout_ns=form.timeout_ns,
            sequence_id=form.sequence_id,
            sequence_start=form.sequence_start,
            sequence_end=form.sequence_end,
        )
        self._places = form.places
        self._arrays = [(place.name, NUMPY_BY_NAME[place.datatype], place.shape, place.offset) for place in form.places]

    def inputs(self, data: Bytes, offset: int) -> Tensors:
        """The inputs of a request whose first one is at ``offset``, as views of ``data``."""
        return {name: np.ndarray(shape, dtype, data, offset + at) for name, dtype, shape, at in self._arrays}

    def read_inputs(self, data: Bytes, offset: int) -> Tensors:
        """The same, for a form of which requests differ in their sizes."""
        return read_places(data[offset:], self._places, copy=False)


class KeptForms:
    """The process's side."""

    def __init__(self) -> None:
        self._kept: list[_KeptForm | None] = [None] * _MOST_FORMS

    def read(self, head: RequestHead, data: Bytes) -> tuple[Plan, Tensors]:
        """The plan of a request, and its inputs as views of ``data``."""
        if head.form is None:
            kept = self._kept[head.slot]
            assert kept is not None
            return kept.plan, kept.inputs(data, head.offset)
        kept = _KeptForm(head.form)
        if head.slot == _NO_NUMBER:
            return kept.plan, kept.read_inputs(data, head.offset)
        self._kept[head.slot] = kept
        return kept.plan, kept.inputs(data, head.offset)
