"""The settings of a torch model on a GPU, from Triton's ``optimization`` and our ``parameters``. Read once per load."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isochrone.worker.backends import parameters
from isochrone.worker.backends.torch.gpu import sm_partitions
from isochrone.worker.backends.torch.gpu.capture_plan import CapturePlan, plan_captures

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import LoadContext

_DTYPES = {"": "", "float16": "float16", "fp16": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16"}
_DTYPES |= {"float32": "float32", "fp32": "float32"}
_COMPILE_MODES = ("", "default", "max-autotune-no-cudagraphs")
_MEBIBYTE = 1 << 20
#: CPUs from which on one may spin while the device computes, unless the configuration says otherwise.
_CPUS_TO_SPIN = 4


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """How one model uses its GPU."""

    #: None: graphs where they can be captured, runs without them where not.
    graphs: bool | None
    plan: CapturePlan
    #: Whether a batch is copied and launched while the one before it computes.
    overlap: bool
    pinned_inputs: bool
    pinned_outputs: bool
    #: Whether results are copied to the host on a stream of their own; None: where they are large.
    output_copy_stream: bool | None
    #: Whether the thread that waits for the device spins: it answers 80 µs earlier, and uses a core meanwhile.
    busy_wait: bool
    #: torch's name of the type in which the model computes; "": that of its file.
    dtype: str
    #: The mode of torch.compile; "": not compiled.
    compile_mode: str
    #: Most memory that graphs may use; 0: no limit but the device's.
    graph_bytes: int
    #: Memory of the device that a load leaves free.
    spare_bytes: int
    #: Multiprocessors of the GPU that are set apart; 0: none.
    reserved_sms: int
    #: Whether this model runs on them; otherwise on the rest.
    is_reserved: bool


def gpu_settings(context: LoadContext) -> GpuSettings:
    config = context.config
    optimization = config.optimization
    sizes = _batch_sizes(context)
    plan = plan_captures(
        config.max_batch_size,
        {spec.name: spec.dims if spec.reshape is None else spec.reshape for spec in context.signature.inputs},
        sizes=sizes,
        preferred=tuple(config.dynamic_batching.preferred_batch_size),
        graph_specs=tuple(optimization.cuda.graph_spec),
    )
    has_cuda = optimization.HasField("cuda")
    graphs = optimization.cuda.graphs if has_cuda else None
    compile_mode = parameters.choice(context, "compile", "", _COMPILE_MODES)
    if compile_mode and graphs is False:
        expected = "none, or optimization.cuda.graphs true: a model is compiled for the graphs that are captured"
        parameters.reject(context, "compile", expected, compile_mode)
    if compile_mode and not len(plan):
        expected = "none, or input.dims without -1, or an optimization.cuda.graph_spec that fixes them"
        parameters.reject(context, "compile", expected, compile_mode)
    return GpuSettings(
        graphs=graphs,
        plan=plan if graphs is not False else CapturePlan(()),
        overlap=parameters.boolean(context, "overlap", True),
        pinned_inputs=not optimization.HasField("input_pinned_memory") or optimization.input_pinned_memory.enable,
        pinned_outputs=not optimization.HasField("output_pinned_memory") or optimization.output_pinned_memory.enable,
        output_copy_stream=optimization.cuda.output_copy_stream if has_cuda else None,
        busy_wait=optimization.cuda.busy_wait_events
        or parameters.boolean(context, "busy_wait", len(os.sched_getaffinity(0)) >= _CPUS_TO_SPIN),
        dtype=_DTYPES[parameters.choice(context, "dtype", "", tuple(_DTYPES))],
        compile_mode=compile_mode,
        graph_bytes=parameters.integer(context, "graph_memory_mib", 0) * _MEBIBYTE,
        spare_bytes=parameters.integer(context, "spare_memory_mib", 256) * _MEBIBYTE,
        reserved_sms=parameters.integer(context, sm_partitions.KEY, 0),
        is_reserved=sm_partitions.reserves(context),
    )


def _batch_sizes(context: LoadContext) -> tuple[int, ...]:
    key, maximum = "graph_batch_sizes", context.config.max_batch_size
    text = parameters.text(context, key)
    if text is None:
        return ()
    expected = f"batch sizes from 1 to {maximum} (max_batch_size), as in 1,4,16"
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        parameters.reject(context, key, expected, text)
    if not sizes or sizes[0] < 1 or sizes[-1] > maximum:
        parameters.reject(context, key, expected, text)
    return tuple(sizes)
