"""Properties of OpenVINO's compiled models, from a model's parameters, which have the names of Triton's backend."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from isochrone.worker.backends import parameters
from isochrone.worker.backends.interface import LoadContext

_HINTS = ("latency", "throughput", "cumulative_throughput")
#: Devices that choose among others.
_VIRTUAL = ("AUTO", "MULTI", "HETERO", "BATCH")
CPU = "CPU"


def target_device(context: LoadContext, available: list[str]) -> str:
    """``TARGET_DEVICE``: the CPU, another device of this machine, or one of OpenVINO's virtual devices."""
    device = (parameters.text(context, "TARGET_DEVICE") or CPU).upper()
    kind = device.partition(":")[0]
    if kind not in _VIRTUAL and not any(kind in (name, name.partition(".")[0]) for name in available):
        expected = "a device that OpenVINO finds on this machine: " + ", ".join((*available, *_VIRTUAL))
        parameters.reject(context, "TARGET_DEVICE", expected, device)
    return device


def compile_properties(context: LoadContext, device: str, supported: Collection[str]) -> dict[str, Any]:
    """``supported`` are the properties that the device has."""
    properties: dict[str, Any] = {}
    hint = parameters.choice(context, "PERFORMANCE_HINT", "latency", _HINTS)
    properties["PERFORMANCE_HINT"] = hint.upper()
    if device == CPU:
        # One thread per instance, as for onnxruntime: instances and batches scale better than a pool. 0: all cores.
        threads = parameters.integer(context, "INFERENCE_NUM_THREADS", 1)
        if threads:
            properties["INFERENCE_NUM_THREADS"] = threads
        # The worker pins instances; OpenVINO would pin the threads of each of them to the same cores.
        properties["ENABLE_CPU_PINNING"] = False
    compiling = parameters.integer(context, "COMPILATION_NUM_THREADS", 0)
    # It makes loads faster and changes nothing else; OpenVINO's CPU device has had it in some releases only.
    if compiling and "COMPILATION_NUM_THREADS" in supported:
        properties["COMPILATION_NUM_THREADS"] = compiling
    streams = _streams(context)
    if streams is not None:
        properties["NUM_STREAMS"] = streams
    if parameters.boolean(context, "HINT_BF16", False):
        properties["INFERENCE_PRECISION_HINT"] = "bf16"
    return properties


def _streams(context: LoadContext) -> str | int | None:
    value = parameters.text(context, "NUM_STREAMS")
    if value is None:
        # An instance runs one batch at a time.
        return 1 if parameters.text(context, "PERFORMANCE_HINT") is None else None
    if value.upper() in ("AUTO", "NUMA"):
        return value.upper()
    if not value.isdigit():
        parameters.reject(context, "NUM_STREAMS", "AUTO, NUMA or an integer >= 0", value)
    return int(value)
