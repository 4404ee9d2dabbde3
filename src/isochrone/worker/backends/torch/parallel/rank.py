"""One rank of a parallel instance: loads its part, and runs it for each batch. The same in rank 0 and the others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from isochrone.models.runtimes import optional_runtime
from isochrone.protocol.tensors.datatypes import NUMPY_BY_NAME
from isochrone.worker.backends import parameters
from isochrone.worker.backends.declared import declared_outputs
from isochrone.worker.backends.torch.arguments import check_datatypes, input_names, matched_arguments
from isochrone.worker.backends.torch.modes import run_mode
from isochrone.worker.backends.torch.parallel.devices import device_of
from isochrone.worker.backends.torch.parallel.failures import failure_of
from isochrone.worker.backends.torch.results import Results

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext
    from isochrone.worker.backends.torch.parallel.messages import Failure
    from isochrone.worker.backends.torch.parallel.settings import ParallelSettings
    from isochrone.worker.backends.torch.parallel.stage import Stage


class Rank:
    """A loaded rank."""

    def __init__(self, torch: Any, device: str, stage: Stage) -> None:
        self.torch = torch
        self.device = device
        self.stage = stage


def load_rank(context: LoadContext, settings: ParallelSettings, number: int, store: int) -> Rank:
    """Loads a rank's part of the model; returns when all ranks have met. ``store``: see ``Transport``."""
    torch = optional_runtime("torch", "torch", parameters.where(context))
    from isochrone.worker.backends.torch.parallel.module_loading import build
    from isochrone.worker.backends.torch.parallel.plan import Shares
    from isochrone.worker.backends.torch.parallel.stage import Stage
    from isochrone.worker.backends.torch.parallel.transport import Transport

    layout = settings.layout
    check_datatypes(context)
    device = device_of(context, layout, number, torch)
    if device == "cpu":
        torch.set_num_threads(settings.threads or max(1, len(os.sched_getaffinity(0)) // layout.ranks))
    else:
        torch.cuda.set_device(device)
    # Everything that can be wrong with the model is found before the ranks meet.
    built = build(context, settings)
    arguments = matched_arguments(context, input_names(context), (built.positional, built.keywords))
    transport = Transport(layout, number, store, device, settings.timeout_seconds)
    kind = device.partition(":")[0]
    share = layout.share_of(number)
    shares = Shares(layout.tensor, share, transport.stage_group, kind) if layout.tensor > 1 else None
    module = built.load(layout.stage_of(number), shares, device)
    label = f"model '{context.model_name}' version {context.model_version}"
    types = {name: NUMPY_BY_NAME[datatype] for name, datatype in declared_outputs(context).items()}
    results = Results(label, list(types))

    def take_results(value: Any) -> dict[str, Any]:
        matched = results.matched(value)
        for name, dtype in types.items():
            results.check(name, dtype, matched[name])
        return {name: matched[name] for name in types}

    stage = Stage(layout, number, module, arguments, transport, run_mode(context, torch), take_results)
    return Rank(torch, device, stage)


def rank_failure(error: BaseException) -> Failure:
    """How a rank's error is reported: what is not the model's own leaves ranks out of step."""
    from isochrone.worker.backends.torch.parallel.stage import ModelError

    if isinstance(error, ModelError) and error.__cause__ is not None:
        return failure_of(error.__cause__, is_fatal=False)
    return failure_of(error, is_fatal=True)
