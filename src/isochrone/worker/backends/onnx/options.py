"""Session options and execution providers of onnxruntime, from a model's configuration.

``optimization`` and ``parameters`` have the names of Triton's onnxruntime backend where it has them. Options that this
build of onnxruntime cannot satisfy are rejected: a silent fall-back would be slower.
"""

from __future__ import annotations

import json
from typing import Any

import onnxruntime

from isochrone.errors import ConfigError
from isochrone.worker.backends import parameters
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.backends.onnx import cuda

# As Triton documents ModelOptimizationPolicy.Graph.
_GRAPH_LEVELS = {
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}

_PROVIDER_BY_ACCELERATOR = {
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "onednn": "DnnlExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
}

# Triton's names of TensorRT options that onnxruntime names differently.
_TENSORRT_OPTION = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "max_cached_engines": "trt_max_cached_engines",
}
_TENSORRT_PRECISION = {"FP16": "trt_fp16_enable", "INT8": "trt_int8_enable"}

CPU_PROVIDER = "CPUExecutionProvider"


def session_options(context: LoadContext) -> Any:
    """Threads, graph level, memory and logging of one session."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = _graph_level(context)
    # One thread per instance: for a small graph, waking a pool costs more than the work, so instances and batches
    # scale better. On a 2-core machine the event loop needs the other core.
    threads = parameters.integer(context, "intra_op_thread_count", 1, minimum=1)
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = parameters.integer(context, "inter_op_thread_count", 1, minimum=1)
    mode = parameters.choice(context, "execution_mode", "0", ("0", "1", "sequential", "parallel"))
    if mode in ("1", "parallel"):
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = parameters.boolean(context, "enable_mem_arena", True)
    options.enable_mem_pattern = parameters.boolean(context, "memory.enable_memory_pattern", True)
    # A spinning pool occupies a core between batches, which the event loop needs.
    spinning = "1" if parameters.boolean(context, "allow_spinning", False) else "0"
    options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
    options.add_session_config_entry("session.inter_op.allow_spinning", spinning)
    if threads > 1 and context.cpus:
        options.add_session_config_entry("session.intra_op_thread_affinities", _affinities(context.cpus, threads))
    # onnxruntime also raises every error that it logs, and a caller's bad input must not fill the log.
    options.log_severity_level = 4
    return options


def execution_providers(context: LoadContext) -> list[tuple[str, dict[str, str]]]:
    """Providers with their options, preferred first; the CPU last, for nodes that the others do not support.

    ``parameters`` take precedence over ``optimization.execution_accelerators``.
    """
    listed = parameters.text(context, "providers")
    if listed is not None:
        providers = [(name.strip(), dict[str, str]()) for name in listed.split(",") if name.strip()]
        key = 'parameters["providers"]'
    else:
        providers = _accelerators(context)
        key = "optimization.execution_accelerators"
        if context.gpu is not None:
            providers = cuda.on_gpu(context, providers)
    available = onnxruntime.get_available_providers()
    for name, _ in providers:
        if name not in available:
            if name == cuda.PROVIDER and listed is None and context.gpu is not None:
                raise cuda.not_usable(context)
            expected = "an execution provider of this onnxruntime (" + ", ".join(available) + ")"
            raise ConfigError(parameters.where(context), key, expected, repr(name))
    if CPU_PROVIDER not in [name for name, _ in providers]:
        providers.append((CPU_PROVIDER, {}))
    for name, options in _provider_options(context, [name for name, _ in providers]).items():
        next(given for provider, given in providers if provider == name).update(options)
    return providers


def _graph_level(context: LoadContext) -> Any:
    level = context.config.optimization.graph.level
    if level not in _GRAPH_LEVELS:
        expected = "-1 (basic), 0 (all) or 1 (extended)"
        raise ConfigError(parameters.where(context), "optimization.graph.level", expected, str(level))
    return _GRAPH_LEVELS[level]


def _affinities(cpus: tuple[int, ...], threads: int) -> str:
    """One CPU per thread of the pool, counted from 1. The worker pins the calling thread, the first of ``threads``."""
    return ";".join(str(cpus[position % len(cpus)] + 1) for position in range(1, threads))


def _accelerators(context: LoadContext) -> list[tuple[str, dict[str, str]]]:
    accelerators = context.config.optimization.execution_accelerators
    providers = []
    for accelerator in [*accelerators.gpu_execution_accelerator, *accelerators.cpu_execution_accelerator]:
        name = _PROVIDER_BY_ACCELERATOR.get(accelerator.name.lower(), accelerator.name)
        options = dict(accelerator.parameters)
        if name == "TensorrtExecutionProvider":
            options = _tensorrt_options(options)
        providers.append((name, options))
    return providers


def _tensorrt_options(given: dict[str, str]) -> dict[str, str]:
    options = {}
    for key, value in given.items():
        if key == "precision_mode":
            if value in _TENSORRT_PRECISION:
                options[_TENSORRT_PRECISION[value]] = "1"
        else:
            options[_TENSORRT_OPTION.get(key, key)] = value
    return options


def _provider_options(context: LoadContext, providers: list[str]) -> dict[str, dict[str, str]]:
    """``parameters["provider_options"]``: a JSON object of provider name to an object of options."""
    value = parameters.text(context, "provider_options")
    if value is None:
        return {}
    expected = "a JSON object of objects, keyed by provider (" + ", ".join(providers) + ")"
    try:
        parsed = json.loads(value)
    except ValueError:
        parameters.reject(context, "provider_options", expected, value)
    if not isinstance(parsed, dict):
        parameters.reject(context, "provider_options", expected, value)
    for name, options in parsed.items():
        if name not in providers or not isinstance(options, dict):
            parameters.reject(context, "provider_options", expected, value)
    return {name: {key: str(option) for key, option in options.items()} for name, options in parsed.items()}
