"""Metrics of models on devices: memory by what it is held for, and rows computed for nobody."""

from __future__ import annotations

from isochrone.observe.device_metrics import device_metrics
from isochrone.observe.snapshot import DeviceMemory, PaddedRows


def test_memory_and_padding_have_their_labels() -> None:
    memory = [DeviceMemory("cuda:0", "m", "1", 0, "weights", 100), DeviceMemory("cuda:0", "m", "1", 1, "slots", 7)]
    gauge, counter = device_metrics(memory, [PaddedRows("m", "1", 12)])
    assert [(sample.labels["instance"], sample.labels["holding"], sample.value) for sample in gauge.samples] == [
        ("0", "weights", 100),
        ("1", "slots", 7),
    ]
    assert [(sample.name, sample.value) for sample in counter.samples] == [("isochrone_padded_rows_total", 12)]


def test_a_server_without_devices_has_none() -> None:
    assert not list(device_metrics((), ()))
