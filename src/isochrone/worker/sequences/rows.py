"""A batch of sequences for an executable that takes requests: each row becomes a request of its own.

As in Triton, the request of a row has the caller's inputs, the control tensors and the implicit state as inputs, and
the number of a request in the list is the number of its slot: a slot without a request before the last one has one of
no sequence, which the READY control tells apart. On the instance's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from isochrone.errors import IsochroneError, ModelFailed
from isochrone.protocol.messages import InferRequest, Plan

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.backends.interface import Executable
    from isochrone.worker.sequences.batcher import SequenceBatch


class RowRequest(InferRequest):
    """The request of one row, in place of the caller's."""

    __slots__ = ("_original",)

    def __init__(self, original: InferRequest, plan: Plan, inputs: Tensors) -> None:
        super().__init__(plan, original.id, inputs, original.arrived, original.deadline)
        self._original = original

    @property
    def cancelled(self) -> bool:
        return self._original.cancelled

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        """Ignored: the transport sets it on the original."""

    @property
    def call_chain(self) -> tuple[Any, ...]:
        return self._original.call_chain


def run_rows(
    executable: Executable, batch: SequenceBatch, inputs: Tensors, states: tuple[str, ...], batched: bool
) -> list[Tensors]:
    """The outputs of each request, and its states. One that fails, fails the batch: its rows share the instance."""
    by_row = dict(zip(batch.positions, batch.requests, strict=True))
    requests = []
    for row in range(batch.rows):
        own = {name: array[row : row + 1] if batched else array for name, array in inputs.items()}
        requests.append(_request_of(by_row.get(row), batch.requests[0], own, states))
    results: list[Tensors] = []
    for row, answer in enumerate(executable.execute_requests(requests)):
        if row not in by_row:
            continue
        if isinstance(answer, IsochroneError):
            raise answer
        if answer is None:
            raise ModelFailed("expected the responses of a sequence model as the result of execute, given none")
        results.append(answer)
    return results


def _request_of(
    request: InferRequest | None, another: InferRequest, inputs: Tensors, states: tuple[str, ...]
) -> InferRequest:
    if request is None:
        plan = another.plan
        return InferRequest(Plan(plan.model_name, plan.model_version, plan.inputs, None), "", inputs, another.arrived)
    plan = request.plan
    if states and plan.outputs is not None:
        plan = plan.copy()
        plan.outputs = (*(plan.outputs or ()), *states)
    return RowRequest(request, plan, inputs)


def gathered_states(results: list[Tensors], batch: SequenceBatch, names: tuple[str, ...], batched: bool) -> Tensors:
    """The state outputs of all rows, as the batcher takes them."""
    states: Tensors = {}
    for name in names:
        arrays = [outputs[name] for outputs in results if name in outputs]
        if len(arrays) < len(results):
            raise ModelFailed(f"output '{name}': expected a state in every response, given {len(arrays)}")
        if not batched:
            states[name] = arrays[0]
            continue
        gathered = np.zeros((batch.rows, *arrays[0].shape[1:]), arrays[0].dtype)
        for position, array in zip(batch.positions, arrays, strict=True):
            gathered[position] = array[0]
        states[name] = gathered
    return states
