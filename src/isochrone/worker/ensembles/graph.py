"""The steps of one ensemble version, and those that a request needs. Made once per load, from the configuration."""

from __future__ import annotations

from collections import Counter
from typing import Any

from isochrone.models.signature import Signature, TensorSpec, signature_of

#: Sets of requested outputs whose steps are remembered; callers use few.
_MAX_REMEMBERED = 64


class Step:
    """One step of the graph, from the configuration."""

    __slots__ = ("inputs", "model", "outputs", "version")

    def __init__(self, step: Any) -> None:
        self.model: str = step.model_name
        self.version = "" if step.model_version in (-1, 0) else str(step.model_version)
        #: model's input → ensemble tensor; model's output → ensemble tensor.
        self.inputs: dict[str, str] = dict(step.input_map)
        self.outputs: dict[str, str] = dict(step.output_map)


class EnsembleGraph:
    """The tensors and steps of an ensemble."""

    def __init__(self, name: str, config: Any) -> None:
        self.name = name
        self.steps = tuple(Step(step) for step in config.ensemble_scheduling.step)
        signature: Signature = signature_of(config)
        self.batched = signature.max_batch_size > 0
        self.inputs: dict[str, TensorSpec] = dict(signature.input_by_name)
        self.outputs: dict[str, TensorSpec] = dict(signature.output_by_name)
        self.reshapes_inputs = any(spec.reshape is not None for spec in signature.inputs)
        self._producers = {tensor: index for index, step in enumerate(self.steps) for tensor in step.outputs.values()}
        readers = Counter(tensor for step in self.steps for tensor in step.inputs.values())
        readers.update(self.outputs.keys())
        #: Of each step: its inputs that another step, or the caller, reads as well.
        self.shared_inputs = tuple(
            frozenset(name for name, tensor in step.inputs.items() if readers[tensor] > 1) for step in self.steps
        )
        self._all = self._needed(tuple(self.outputs))
        self._remembered: dict[tuple[str, ...], tuple[int, ...]] = {}

    def readers(self, tensor: str) -> tuple[int, ...]:
        """Indices of the steps that read a tensor."""
        return tuple(index for index, step in enumerate(self.steps) if tensor in step.inputs.values())

    def needed(self, outputs: tuple[str, ...] | None) -> tuple[int, ...]:
        """Indices of the steps that these outputs need, directly or through others; None: all outputs."""
        if outputs is None:
            return self._all
        needed = self._remembered.get(outputs)
        if needed is None:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            needed = self._remembered[outputs] = self._needed(outputs)
        return needed

    def _needed(self, outputs: tuple[str, ...]) -> tuple[int, ...]:
        found: set[int] = set()
        tensors = list(outputs)
        while tensors:
            producer = self._producers.get(tensors.pop())
            if producer is not None and producer not in found:
                found.add(producer)
                tensors += self.steps[producer].inputs.values()
        return tuple(sorted(found))
