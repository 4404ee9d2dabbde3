"""One rank of a parallel instance: loads its part, and runs it for each batch. The same in rank 0 and the others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from isochrone.models.runtimes import optional_runtime
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME
from isochrone.worker.backends import parameters
from isochrone.worker.backends.tensors.declared import declared_outputs
from isochrone.worker.backends.torch.arguments import check_datatypes, input_names, matched_arguments
from isochrone.worker.backends.torch.modes import run_mode
from isochrone.worker.backends.torch.parallel.devices import device_of
from isochrone.worker.backends.torch.parallel.failures import failure_of
from isochrone.worker.backends.torch.parallel.settings import parallel_settings
from isochrone.worker.backends.torch.results import Results

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext
    from isochrone.worker.backends.torch.parallel.messages import Failure
    from isochrone.worker.backends.torch.parallel.module_loading import BuiltModule
    from isochrone.worker.backends.torch.parallel.stage import Stage, TakeResults


class Rank:
    """One rank. ``prepare`` imports torch and finds what is wrong with the model; then ``meet`` may wait for others."""

    torch: Any
    device: str
    stage: Stage
    _built: BuiltModule
    _arguments: tuple[list[str], list[str]]

    def __init__(self, context: LoadContext, number: int) -> None:
        self._context = context
        self._number = number
        self._settings = parallel_settings(context)

    def prepare(self) -> None:
        context, layout = self._context, self._settings.layout
        torch = self.torch = optional_runtime("torch", "torch", parameters.where(context))
        from isochrone.worker.backends.torch.parallel.module_loading import build

        check_datatypes(context)
        self.device = device_of(context, layout, self._number, torch)
        if self.device == "cpu":
            torch.set_num_threads(self._settings.threads or max(1, len(os.sched_getaffinity(0)) // layout.ranks))
        else:
            torch.cuda.set_device(self.device)
        self._built = build(context, self._settings)
        names = (self._built.positional, self._built.keywords)
        self._arguments = matched_arguments(context, input_names(context), names)

    def meet(self, store: int) -> None:
        """Every rank is prepared. ``store``: see ``Transport``."""
        from isochrone.worker.backends.torch.parallel.plan import Shares
        from isochrone.worker.backends.torch.parallel.stage import Stage
        from isochrone.worker.backends.torch.parallel.transport import Transport

        context, layout, number = self._context, self._settings.layout, self._number
        transport = Transport(layout, number, store, self.device, self._settings.timeout_seconds)
        shares = None
        if layout.tensor > 1:
            kind = self.device.partition(":")[0]
            shares = Shares(layout.tensor, layout.share_of(number), transport.stage_group, kind)
        module = self._built.load(layout.stage_of(number), shares, self.device)
        mode = run_mode(context, self.torch)
        self.stage = Stage(layout, number, module, self._arguments, transport, mode, _checked_results(context))


def _checked_results(context: LoadContext) -> TakeResults:
    types = {name: NUMPY_BY_NAME[datatype] for name, datatype in declared_outputs(context).items()}
    results = Results(f"model '{context.model_name}' version {context.model_version}", list(types))

    def take(value: Any) -> dict[str, Any]:
        matched = results.matched(value)
        for name, dtype in types.items():
            results.check(name, dtype, matched[name])
        return {name: matched[name] for name in types}

    return take


def rank_failure(error: BaseException) -> Failure:
    """How a rank's error is reported: what is not the model's own leaves ranks out of step."""
    from isochrone.worker.backends.torch.parallel.stage import ModelError

    if isinstance(error, ModelError) and error.__cause__ is not None:
        return failure_of(error.__cause__, is_fatal=False)
    return failure_of(error, is_fatal=True)
