"""The device of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isochrone.devices.gpu_facts import explain_missing_gpu
from isochrone.errors import ConfigError
from isochrone.models.instances import configured_instances
from isochrone.worker.backends import parameters
from isochrone.worker.backends.torch.parallel.settings import rank_gpus

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext
    from isochrone.worker.backends.torch.parallel.layout import Layout


def device_of(context: LoadContext, layout: Layout, rank: int, torch: Any) -> str:
    """torch's name of it. ``KIND_AUTO`` is the first GPUs where torch can use one. Raises if there are too few."""
    gpus = rank_gpus(context, layout)
    if gpus is None:
        group = configured_instances(context.config)[context.instance].group if context.config.instance_group else None
        if (group is not None and group.kind != group.KIND_AUTO) or not torch.cuda.is_available():
            return "cpu"
        gpus = list(range(layout.ranks))
    where, usable = parameters.where(context), torch.cuda.device_count() if torch.cuda.is_available() else 0
    for gpu in gpus:
        if not usable:
            reason = explain_missing_gpu(gpu, "torch")
            expected = f"GPUs that torch can use, but {reason}. To run on the CPU, change it to KIND_CPU"
            raise ConfigError(where, "instance_group.kind", expected, f"GPU {gpu}")
        if gpu >= usable:
            expected = f"GPUs below {usable}, of which {layout.ranks} ranks have one each; or KIND_CPU"
            raise ConfigError(where, "instance_group.gpus", expected, f"GPU {gpu}")
    return f"cuda:{gpus[rank]}"
