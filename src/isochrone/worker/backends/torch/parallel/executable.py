"""Rank 0 of a parallel instance: takes whole batches and answers when all ranks have finished.

It runs in the process of an isolated model, whose loader this module is (``load_in_child``).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from isochrone.worker.backends.interface import Executable
from isochrone.worker.backends.isolation.sent_context import received_context, sent_context
from isochrone.worker.backends.torch.host_arrays import to_numpy, to_torch
from isochrone.worker.backends.torch.parallel.group import RankGroup
from isochrone.worker.backends.torch.parallel.layout import micro_batches
from isochrone.worker.backends.torch.parallel.messages import Meet, Prepare, RunBatch
from isochrone.worker.backends.torch.parallel.rank import Rank
from isochrone.worker.backends.torch.parallel.settings import parallel_settings

if TYPE_CHECKING:
    import msgspec

    from isochrone.protocol.messages import Tensors
    from isochrone.worker.backends.interface import InstanceLost, LoadContext


class ParallelExecutable(Executable):
    """One model over all ranks of its group."""

    inline_allowed = False
    fresh_outputs = True

    def __init__(self, context: LoadContext) -> None:
        self._settings = parallel_settings(context)
        layout = self._settings.layout
        config = context.config
        self._splits = config.max_batch_size > 0 and not any(each.allow_ragged_batch for each in config.input)
        label = f"model '{context.model_name}' version {context.model_version}"
        # The other ranks import torch while this one does.
        self._group = RankGroup(label, layout, self._settings.timeout_seconds)
        try:
            sent = sent_context(context)
            self._rank = Rank(context, 0)
            self._group.load(lambda number: Prepare(sent, number), self._rank.prepare)
            self._group.load(lambda _: Meet(), lambda: self._rank.meet(self._group.store.descriptor))
        except BaseException:
            self._group.end()
            raise
        self._group.watch(self._report)

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        from isochrone.worker.backends.torch.parallel.transport import tensor_heads

        torch = self._rank.torch
        tensors = {name: to_torch(torch, array) for name, array in inputs.items()}
        batch = RunBatch(tensor_heads(tensors), self._rows(inputs))
        results = self._group.carry_out(lambda _: batch, lambda: self._run(batch, tensors))
        return {name: to_numpy(torch, tensor) for name, tensor in results.items() if outputs is None or name in outputs}

    def close(self) -> None:
        self._group.close()

    def _report(self, error: InstanceLost) -> None:
        if self.report_loss is not None:
            self.report_loss(error)
        else:  # the load has just ended
            print(error, file=sys.stderr)

    def _run(self, batch: RunBatch, tensors: dict[str, Any]) -> dict[str, Any] | None:
        device = self._rank.device
        return self._rank.stage.run(batch, {name: tensor.to(device) for name, tensor in tensors.items()})

    def _rows(self, inputs: Tensors) -> list[int]:
        """Rows of each micro-batch; []: the batch is not split."""
        counts = {array.shape[:1] for array in inputs.values()}
        if not self._splits or len(counts) != 1 or counts == {()}:
            return []
        ((rows,),) = counts
        return micro_batches(rows, self._settings.layout.pipeline, self._settings.micro_batch_rows)


def load_in_child(model: msgspec.Raw) -> Executable:
    return ParallelExecutable(received_context(model))
