"""One rank's part of a batch: micro-batches come from the stage before, are computed, and go to the stage after.

A micro-batch that fails in a stage is passed on as failed, and so are those behind it: every rank gets to the end of
the batch, out of all collectives. An error of the transport itself is raised as it is: then ranks are out of step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from isochrone.errors import ModelFailed
from isochrone.worker.backends.torch.parallel.transport import StageFailed, Transport, describe

if TYPE_CHECKING:
    from isochrone.worker.backends.torch.parallel.layout import Layout
    from isochrone.worker.backends.torch.parallel.messages import RunBatch

#: Checks the results of the last stage: the declared outputs by name.
TakeResults = Callable[[Any], dict[str, Any]]


class ModelError(Exception):
    """The model's own code failed, in this rank; the cause says how."""


class Stage:
    """The loaded part of one rank."""

    def __init__(
        self,
        layout: Layout,
        rank: int,
        module: Callable[..., Any],
        arguments: tuple[list[str], list[str]],
        transport: Transport,
        mode: Callable[[], AbstractContextManager[Any]],
        take_results: TakeResults,
    ) -> None:
        self._layout = layout
        self._rank = rank
        self._module = module
        self._positional, self._keywords = arguments
        self._transport = transport
        self._mode = mode
        self._take_results = take_results
        stage, share = layout.stage_of(rank), layout.share_of(rank)
        self._is_first, self._is_last = stage == 0, stage == layout.last_stage
        self._before = layout.rank_of(stage - 1, share)
        self._after = layout.rank_of(stage + 1, share)

    def run(self, batch: RunBatch, inputs: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Runs a batch. Rank 0 gives ``inputs``, on its device, and gets the outputs; None: a later stage failed."""
        with self._mode():
            return self._run(batch, inputs)

    def _run(self, batch: RunBatch, inputs: dict[str, Any] | None) -> dict[str, Any] | None:
        failure: Exception | None = None
        results: list[dict[str, Any] | None] = []
        count = len(batch.rows) or 1
        micro_batches: list[dict[str, Any]] = []
        if self._is_first:
            micro_batches = _split(self._transport.share_inputs(batch.inputs, inputs), batch.rows)
        for number in range(count):
            has_failed = False
            value: Any = None
            if not self._is_first:
                try:
                    value = self._transport.receive(self._before)
                except StageFailed:
                    has_failed = True
            result: Any = None
            if failure is None and not has_failed:
                try:
                    rows = batch.rows[number] if count > 1 else None
                    result = self._computed(micro_batches[number] if self._is_first else value, rows)
                except Exception as error:
                    failure = error
            self._pass_on(result, results)
        self._transport.flush()
        if self._rank == 0 and not self._is_last:
            results = [self._output() for _ in range(count)]
        if failure is not None:
            raise ModelError from failure
        outputs = [each for each in results if each is not None]
        if self._rank or len(outputs) < count:
            return None
        return outputs[0] if count == 1 else {name: torch.cat([each[name] for each in outputs]) for name in outputs[0]}

    def _computed(self, value: Any, rows: int | None) -> Any:
        """A pair to send: for the next stage, or the outputs. ``rows``: of the micro-batch; None: it is all."""
        if self._is_first:
            positional = [value[name] for name in self._positional]
            result = self._module(*positional, **{name: value[name] for name in self._keywords})
        else:
            result = self._module(value)
        if not self._is_last:
            return describe(result)
        # In every rank of the stage, so that they fail alike.
        for name, tensor in (results := self._take_results(result)).items():
            if rows is not None and tuple(tensor.shape[:1]) != (rows,):
                raise ModelFailed(f"output '{name}': expected {rows} rows, given shape {list(tensor.shape)}")
        outputs = {name: tensor.to("cpu").contiguous() for name, tensor in results.items()}
        return describe(outputs) if self._layout.last_stage else (None, outputs)

    def _pass_on(self, result: Any, results: list[dict[str, Any] | None]) -> None:
        if self._is_last and self._layout.last_stage == 0:
            results.append(None if result is None else result[1])
            return
        if self._is_last and self._rank != self._layout.answering_rank:
            return
        target = 0 if self._is_last else self._after
        if result is None:
            self._transport.send_failure(target)
        else:
            self._transport.send(target, *result)

    def _output(self) -> dict[str, Any] | None:
        try:
            outputs: dict[str, Any] = self._transport.receive(self._layout.answering_rank, "cpu")
        except StageFailed:
            return None
        return outputs


def _split(inputs: dict[str, Any], rows: Sequence[int]) -> list[dict[str, Any]]:
    if len(rows) < 2:
        return [inputs]
    parts = {name: tensor.split(list(rows)) for name, tensor in inputs.items()}
    return [{name: parts[name][number] for name in parts} for number in range(len(rows))]
