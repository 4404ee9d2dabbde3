"""The metrics of models on devices: memory by what it is held for, padding rows and captured graphs.

A server without such a model has none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from isochrone.observe.snapshot import CapturedGraphs, DeviceMemory, PaddedRows


def device_metrics(
    memory: Sequence[DeviceMemory], padded: Sequence[PaddedRows], captured: Sequence[CapturedGraphs]
) -> Iterator[Metric]:
    if memory:
        gauge = GaugeMetricFamily(
            "isochrone_device_memory_bytes",
            "Memory of a device that an instance of a model holds, by what it is held for",
            labels=("device", "model", "version", "instance", "holding"),
        )
        for each in memory:
            gauge.add_metric(
                (each.device, each.model_name, each.model_version, str(each.instance), each.holding), each.size
            )
        yield gauge
    if padded:
        counter = CounterMetricFamily(
            "isochrone_padded_rows",
            "Padding rows: a batch is padded up to the size of a captured graph",
            labels=("model", "version"),
        )
        for rows in padded:
            counter.add_metric((rows.model_name, rows.model_version), rows.rows)
        yield counter
    if captured:
        gauge = GaugeMetricFamily(
            "isochrone_captured_graphs",
            "CUDA graphs that the instances of a model have captured; 0: it runs without",
            labels=("model", "version"),
        )
        for graphs in captured:
            gauge.add_metric((graphs.model_name, graphs.model_version), graphs.graphs)
        yield gauge
