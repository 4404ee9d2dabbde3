"""The tensors of a request between the steps of an ensemble. Pure.

An input that the caller left out, or an output that a model did not return, is None: the steps behind it run without
it, and their signatures decide whether they can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.worker.ensembles.shapes import fit_shape
from isochrone.worker.execution.instances.reshape import new_shape

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest, Tensor, Tensors
    from isochrone.worker.ensembles.graph import EnsembleGraph, Step
    from isochrone.worker.served_version import ServedVersion


class Frame:
    """Tensors that belong together: those of the request, or of one response of a decoupled step."""

    __slots__ = ("_rows", "_tensors", "started")

    def __init__(self, tensors: dict[str, Tensor | None], rows: dict[str, int] | None, started: set[int]) -> None:
        self._tensors = tensors
        #: Batch size of each tensor, 0 if the model that made it does not batch. None: all models of the ensemble agree
        #: on batching, so shapes need no adjustment.
        self._rows = rows
        #: Indices of the steps that have started on these tensors.
        self.started = started

    @classmethod
    def of_request(cls, graph: EnsembleGraph, request: InferRequest, *, mixed: bool) -> Frame:
        """``mixed``: some models of the ensemble batch and some do not."""
        tensors: dict[str, Tensor | None] = dict(request.inputs)
        if len(tensors) < len(graph.inputs):
            for name in graph.inputs:
                tensors.setdefault(name, None)
        if graph.reshapes_inputs:
            for name, spec in graph.inputs.items():
                array = tensors[name]
                if array is not None and spec.reshape is not None:
                    tensors[name] = array.reshape(new_shape(array.shape, spec.dims, spec.reshape, graph.batched))
        rows = dict.fromkeys(tensors, request.plan.batch_size if graph.batched else 0) if mixed else None
        return cls(tensors, rows, set())

    def branch(self) -> Frame:
        rows = None if self._rows is None else dict(self._rows)
        return Frame(dict(self._tensors), rows, set(self.started))

    def has_inputs(self, step: Step) -> bool:
        return all(tensor in self._tensors for tensor in step.inputs.values())

    def inputs(self, step: Step, version: ServedVersion) -> Tensors:
        """The inputs of a step, shaped as its model declares them."""
        inputs: Tensors = {}
        for name, tensor in step.inputs.items():
            array = self._tensors[tensor]
            if array is None:
                continue
            if self._rows is not None:
                spec = version.signature.input_by_name.get(name)
                dims = spec.dims if spec is not None else ()
                array = array.reshape(fit_shape(array.shape, self._rows[tensor], dims, version.batched))
            inputs[name] = array
        return inputs

    def add(self, step: Step, outputs: Tensors, rows: int) -> None:
        """Adds the outputs of a step; ``rows`` is their batch size, 0 without one."""
        for name, tensor in step.outputs.items():
            self._tensors[tensor] = outputs.get(name)
            if self._rows is not None:
                self._rows[tensor] = rows

    def outputs(self, graph: EnsembleGraph, names: tuple[str, ...]) -> Tensors | None:
        """The ensemble's outputs; None while one is missing. Raises ``ValueError`` if one cannot be reshaped."""
        outputs: Tensors = {}
        for name in names:
            if name not in self._tensors:
                return None
            array = self._tensors[name]
            if array is None:
                continue
            spec = graph.outputs[name]
            if self._rows is not None:
                dims = spec.dims if spec.reshape is None else spec.reshape
                array = array.reshape(fit_shape(array.shape, self._rows[name], dims, graph.batched))
            if spec.reshape is not None:
                array = array.reshape(new_shape(array.shape, spec.reshape, spec.dims, graph.batched))
            outputs[name] = array
        return outputs
