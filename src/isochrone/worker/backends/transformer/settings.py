"""The parameters of a generating model's config.pbtxt, and the device of an instance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isochrone.devices.gpu_facts import explain_missing_gpu
from isochrone.errors import ConfigError
from isochrone.models.instances import configured_instances
from isochrone.worker.backends import parameters
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.transformer.checkpoint.shape import DecoderShape
from isochrone.worker.backends.transformer.memory import Request

GATHER, PAGED = "gather", "paged"


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked values, with defaults filled in."""

    #: As torch names it: "cpu", "cuda:0".
    device: str
    #: As torch names it.
    dtype: str
    attention: str
    cuda_graphs: bool
    #: Two steps may be in flight.
    launch_ahead: bool
    request: Request


def device_of(context: LoadContext, visible_gpus: int) -> str:
    """The device of an instance; ``visible_gpus`` is the number that torch sees."""
    instances = configured_instances(context.config)
    if not instances:
        return "cuda:0" if visible_gpus else "cpu"
    group, _, gpu = instances[context.instance]
    if gpu is None:
        return "cpu" if group.kind == group.KIND_CPU or not visible_gpus else "cuda:0"
    if gpu >= visible_gpus:
        reason = explain_missing_gpu(gpu, "torch")
        expected = f"a GPU that torch can use, but {reason}. To run on the CPU, change it to KIND_CPU"
        raise ConfigError(parameters.where(context), "instance_group.kind", expected, f"GPU {gpu}")
    return f"cuda:{gpu}"


#: As the torch backend has them.
_SHORT_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def settings_of(context: LoadContext, shape: DecoderShape, visible_gpus: int) -> Settings:
    device = device_of(context, visible_gpus)
    is_cuda = device != "cpu"
    allowed = ("auto", "float32", "bfloat16", "float16", *_SHORT_NAMES)
    dtype = parameters.choice(context, "dtype", "auto", allowed)
    dtype = _SHORT_NAMES.get(dtype, dtype)
    if dtype == "auto":
        # CPUs compute float32 fastest, but for the newest.
        dtype = shape.dtype if is_cuda else "float32"
    attention = parameters.choice(
        context, "attention", PAGED if is_cuda and dtype != "float32" else GATHER, (GATHER, PAGED)
    )
    if attention == PAGED and (not is_cuda or dtype == "float32"):
        given = f"'paged' on {device} in {dtype}"
        where = parameters.where(context)
        raise ConfigError(where, 'parameters["attention"]', "'gather', or a GPU and bfloat16 or float16", given)
    graphs = parameters.boolean(context, "cuda_graphs", True) and is_cuda and attention == PAGED
    ahead = parameters.boolean(context, "launch_ahead", True) and is_cuda
    return Settings(device, dtype, attention, graphs, ahead, _request(context, shape))


def _request(context: LoadContext, shape: DecoderShape) -> Request:
    context_tokens = parameters.integer(context, "max_context", shape.context, minimum=2)
    if context_tokens > shape.context:
        expected = f"at most {shape.context}, the model's own (max_position_embeddings, or its sliding window)"
        parameters.reject(context, "max_context", expected, str(context_tokens))
    block_tokens = parameters.integer(context, "block_tokens", 16, minimum=1)
    if block_tokens & (block_tokens - 1) or block_tokens > 256:
        parameters.reject(context, "block_tokens", "a power of two up to 256", str(block_tokens))
    cache_tokens = parameters.integer(context, "kv_cache_tokens", 0, minimum=1)
    return Request(
        where=parameters.where(context),
        context_tokens=context_tokens,
        block_tokens=block_tokens,
        rows=parameters.integer(context, "max_rows", 64, minimum=1),
        prefill_tokens=min(parameters.integer(context, "prefill_tokens", 512, minimum=2), 65536),
        cache_tokens=cache_tokens or None,
        cache_fraction=_fraction(context, "kv_cache_fraction", 0.5),
    )


def _fraction(context: LoadContext, key: str, default: float) -> float:
    value = parameters.text(context, key)
    if value is None:
        return default
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        parameters.reject(context, key, "a number above 0 and at most 1", value)
    return number


def torch_dtype(torch: Any, settings: Settings) -> Any:
    return getattr(torch, settings.dtype)
