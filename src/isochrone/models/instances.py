"""The instances for which the ``instance_group`` entries of a completed configuration ask, in Triton's order.

Everything that counts or names instances reads them here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from isochrone.models.ranks import rank_count


class ConfiguredInstance(NamedTuple):
    """One instance."""

    #: Its entry of ``instance_group``.
    group: Any
    #: Triton's name. Instances of one group on different GPUs share theirs, as in Triton.
    name: str
    #: The number of its GPU, or of the first of them; None: it has none.
    gpu: int | None


def configured_instances(config: Any) -> list[ConfiguredInstance]:
    """``count`` instances of each group; of a group on GPUs, ``count`` on each of them. No group: no instances.

    An instance of several ranks has as many GPUs, which follow each other in its group.
    """
    ranks = rank_count(config)
    return [
        ConfiguredInstance(group, f"{group.name}_{number}", gpu)
        for group in config.instance_group
        for number in range(max(1, group.count))
        for gpu in _gpus(group, ranks)
    ]


def _gpus(group: Any, ranks: int) -> list[int] | list[None]:
    if group.gpus:
        return list(group.gpus)[::ranks]
    return [0] if group.kind == group.KIND_GPU else [None]
