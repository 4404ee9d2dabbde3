"""Metrics of models on devices: memory by what it is held for, rows computed for nobody, captured graphs."""

from __future__ import annotations

from isochrone.observe.metrics.devices import device_metrics
from isochrone.observe.snapshot import CapturedGraphs, DeviceMemory, PaddedRows


def test_memory_padding_and_graphs_have_their_labels() -> None:
    memory = [DeviceMemory("cuda:0", "m", "1", 0, "weights", 100), DeviceMemory("cuda:0", "m", "1", 1, "slots", 7)]
    graphs = [CapturedGraphs("m", "1", 8), CapturedGraphs("m", "2", 0)]
    gauge, counter, captured = device_metrics(memory, [PaddedRows("m", "1", 12)], graphs)
    assert [(sample.labels["instance"], sample.labels["holding"], sample.value) for sample in gauge.samples] == [
        ("0", "weights", 100),
        ("1", "slots", 7),
    ]
    assert [(sample.name, sample.value) for sample in counter.samples] == [("isochrone_padded_rows_total", 12)]
    assert [(sample.name, sample.labels, sample.value) for sample in captured.samples] == [
        ("isochrone_captured_graphs", {"model": "m", "version": "1"}, 8),
        ("isochrone_captured_graphs", {"model": "m", "version": "2"}, 0),
    ]


def test_a_server_without_devices_has_none() -> None:
    assert not list(device_metrics((), (), ()))
