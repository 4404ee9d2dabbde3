"""What a configuration asks of a parallel instance. Read once per load; torch is not imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from isochrone.errors import ConfigError
from isochrone.models.instances import configured_instances
from isochrone.models.ranks import PIPELINE_KEY, TENSOR_KEY
from isochrone.worker.backends import parameters
from isochrone.worker.backends.torch.parallel.layout import Layout

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext

#: Most ranks of one instance: each is a process with torch in it.
_MOST_RANKS = 64
#: Of a model that one process computes.
_ONE_RANK_ONLY = ("compile", "dtype", "reserved_sms", "graph_batch_sizes")


@dataclass(frozen=True, slots=True)
class ParallelSettings:
    layout: Layout
    #: Rows of a micro-batch at most; 0: a batch has as many micro-batches as the model has stages.
    micro_batch_rows: int
    #: The first child of every stage but the first; None: stages have about the same bytes of weights.
    cuts: tuple[int, ...] | None
    #: Threads inside one run of one rank on the CPU; 0: the CPUs divided by the ranks.
    threads: int
    #: Longest wait of one rank for another.
    timeout_seconds: int


def is_parallel(context: LoadContext) -> bool:
    """Whether the model is a ``model.py`` with ranks, be it one."""
    return any(parameters.text(context, key) is not None for key in (TENSOR_KEY, PIPELINE_KEY))


def parallel_settings(context: LoadContext) -> ParallelSettings:
    layout = Layout(
        parameters.integer(context, TENSOR_KEY, 1, minimum=1), parameters.integer(context, PIPELINE_KEY, 1, minimum=1)
    )
    if layout.ranks > _MOST_RANKS:
        key, given = (TENSOR_KEY, layout.tensor) if layout.tensor > _MOST_RANKS else (PIPELINE_KEY, layout.pipeline)
        parameters.reject(context, key, f"at most {_MOST_RANKS} ranks for one instance", str(given))
    config, where = context.config, parameters.where(context)
    if config.model_transaction_policy.decoupled:
        expected = f"false: a model with {TENSOR_KEY} or {PIPELINE_KEY} returns one answer to each request"
        raise ConfigError(where, "model_transaction_policy.decoupled", expected, "true")
    if layout.ranks > 1:
        _check_ranks(context)
    return ParallelSettings(
        layout,
        parameters.integer(context, "micro_batch_rows", 0, minimum=1),
        _cuts(context, layout),
        parameters.integer(context, "intra_op_thread_count", 0, minimum=1),
        parameters.integer(context, "collective_timeout_seconds", 60, minimum=1),
    )


def _check_ranks(context: LoadContext) -> None:
    """What only a model in one process can have."""
    where = parameters.where(context)
    if context.config.HasField("sequence_batching"):
        expected = "none for a model with more than one rank: the state of sequences would be in one of them"
        raise ConfigError(where, "sequence_batching", expected, "one")
    if parameters.choice(context, "isolation", "process", ("thread", "process")) == "thread":
        parameters.reject(context, "isolation", '"process" or none: ranks are processes of their own', "thread")
    for key in _ONE_RANK_ONLY:
        if (given := parameters.text(context, key)) is not None:
            parameters.reject(context, key, "none for a model with more than one rank", given)
    if context.config.optimization.cuda.graphs:
        expected = "false for a model with more than one rank: its runs are not captured"
        raise ConfigError(where, "optimization.cuda.graphs", expected, "true")


def rank_gpus(context: LoadContext, layout: Layout) -> list[int] | None:
    """The GPU of each rank; None: the configuration gives the instance none."""
    if context.gpu is None:
        return None
    group = configured_instances(context.config)[context.instance].group
    gpus = list(group.gpus) or list(range(layout.ranks))
    if len(gpus) % layout.ranks or len(set(gpus)) < len(gpus):
        expected = f"{layout.ranks} different GPUs for each instance, one for each rank (tensor_parallel × "
        raise ConfigError(
            parameters.where(context), "instance_group.gpus", f"{expected}pipeline_parallel)", str(list(group.gpus))
        )
    first = gpus.index(context.gpu)
    return gpus[first : first + layout.ranks]


def _cuts(context: LoadContext, layout: Layout) -> tuple[int, ...] | None:
    key = "pipeline_cuts"
    text = parameters.text(context, key)
    if text is None:
        return None
    expected = f'the first child of each stage after the first: {layout.pipeline - 1} rising numbers, as in "3,6"'
    try:
        cuts = tuple(int(part) for part in text.split(","))
    except ValueError:
        parameters.reject(context, key, expected, text)
    if len(cuts) != layout.pipeline - 1 or list(cuts) != sorted(set(cuts)) or cuts[0] < 1:
        parameters.reject(context, key, expected, text)
    return cuts
