"""Measures the link between a worker of each tier, the way that it will be used.

A remote model on the edge worker sends tensors of several sizes to a model on the core worker that does nothing with
them, several times each, until TCP's window has grown to the size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from isochrone.models.divisions import Link
from isochrone.optimize.partitioning.links import Exchange, link_of
from isochrone.optimize.partitioning.tiers import TierWorker

#: A stage may take shapes or indices, and fail with zeros: real inputs warm it up before it is timed.
ONNX: Mapping[str, Any] = {
    "backend": "onnxruntime",
    "max_batch_size": 0,
    "parameters": {"auto_warmup": {"string_value": "false"}},
}

#: Sizes of probes: round trips, then from the first on, each so many times as large.
_SMALL, _FIRST, _LARGE, _STEP = 64, 1 << 12, 1 << 20, 4
_WARM_RUNS, _ROUND_TRIPS, _PROBES = 3, 24, 7
#: A larger probe tells the bandwidth better, and takes too long on a slow link.
_ENOUGH_SECONDS = 0.2
#: Probes before those that count: at most, and the share of the time of the one before that ends them.
_MOST_WARM_PROBES, _STEADY = 8, 0.9


def measured_link(edge: TierWorker, core: TierWorker, report: Callable[[str], None], largest: int = _LARGE) -> Link:
    """``largest``: bytes that an option sends at most; more need not be tried."""
    tensors = {
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    }
    with core.loaded(ONNX, probe_model().SerializeToString()) as there:
        parameters = {"endpoints": core.reached, "remote_model": there, "remote_version": "1", **core.certificates}
        texts = {key: {"string_value": value} for key, value in parameters.items()}
        with edge.loaded({"backend": "remote", **tensors, "parameters": texts}) as here:

            def exchange(size: int) -> Exchange:
                return Exchange(size, edge.compute_seconds(here, {"x": np.zeros(size // 4, np.float32)}))

            for _ in range(_WARM_RUNS):
                exchange(_SMALL)
            exchanges = [exchange(_SMALL) for _ in range(_ROUND_TRIPS)]
            for size in _sizes(largest):
                _grow_window(partial(exchange, size))
                probes = [exchange(size) for _ in range(_PROBES)]
                exchanges += probes
                if min(each.seconds for each in probes) >= _ENOUGH_SECONDS:
                    break
    link = link_of(exchanges)
    report(
        f"the link: {link.round_trip * 1e3:.2f} ms round trip, {link.bytes_per_second * 8 / 1e6:,.1f} Mbit/s, "
        f"{link.jitter * 1e3:.2f} ms jitter"
    )
    return link


def probe_model() -> Any:
    """A model that reads a tensor of any size and answers with one number."""
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("ReduceMax", ["x"], ["y"], keepdims=1)],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def _sizes(largest: int) -> list[int]:
    """Of probes with a payload: at least two, up to the first that is not below ``largest``."""
    sizes = [_FIRST, _FIRST * _STEP]
    while sizes[-1] < min(largest, _LARGE):
        sizes.append(sizes[-1] * _STEP)
    return sizes


def _grow_window(exchange: Callable[[], Exchange]) -> None:
    """Until an exchange is about as slow as the one before."""
    before = exchange().seconds
    for _ in range(_MOST_WARM_PROBES - 1):
        now = exchange().seconds
        if now > _STEADY * before:
            return
        before = now
