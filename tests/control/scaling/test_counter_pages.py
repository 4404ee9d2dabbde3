"""Pages of gateways and workers: what is counted on them, and pages that are something else."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from google.protobuf import text_format
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from tritonclient.grpc import model_config_pb2

from isochrone.control.scaling.reading.counter_pages import gateway_counts, model_configuration, worker_statistics
from isochrone.control.scaling.reading.fleet_counters import (
    BatchCounts,
    ModelConfiguration,
    RequestCounts,
    VersionStatistics,
)
from isochrone.protocol.control_json import model_config_json, model_statistics_json
from isochrone.worker.statistics import ModelStatistics


class Page(Collector):
    """As a gateway writes it."""

    def __init__(self, **models: RequestCounts) -> None:
        self._models = models

    def collect(self) -> Any:
        received = CounterMetricFamily("isochrone_gateway_requests", "-", labels=("model",))
        rejected = CounterMetricFamily("isochrone_gateway_rejections", "-", labels=("model", "reason"))
        waiting = GaugeMetricFamily("isochrone_gateway_waiting", "-", labels=("model",))
        for model, counts in self._models.items():
            received.add_metric((model,), counts.received)
            for reason in ("deadline_exceeded", "unavailable", "worker"):
                rejected.add_metric((model, reason), counts.refused)
            for reason in ("queue_full", "quarantined"):
                rejected.add_metric((model, reason), counts.turned_away)
            waiting.add_metric((model,), counts.waiting)
        yield from (GaugeMetricFamily("isochrone_gateway_in_flight", "-", 3), received, rejected, waiting)


def test_a_gateways_page_gives_counts_by_model_whatever_the_model_is_called() -> None:
    names = ("plain", 'quo"ted', "back\\slash", "two\nlines", "brace} 7.0", 'end\\"', "ümlaut")
    page = generate_latest(Page(**{name: RequestCounts(7, 2, 1, 3) for name in names}))
    counts = gateway_counts(page, "i")
    assert counts.incarnation == "i"
    assert counts.models == dict.fromkeys(names, RequestCounts(7, 6, 2, 3))


def test_a_gateway_that_has_received_nothing_has_said_so() -> None:
    assert gateway_counts(generate_latest(Page()), "").models == {}
    assert gateway_counts(generate_latest(Page(m=RequestCounts())), "").models == {}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1.0", "many", ""])
def test_a_page_that_is_not_a_gateways_is_no_reading(value: str) -> None:
    with pytest.raises(ValueError, match="another page"):
        gateway_counts(b"<html>not found</html>", "")
    page = generate_latest(Page(m=RequestCounts(7))).replace(b"} 7.0", b"} " + value.encode())
    with pytest.raises(ValueError, match=r"expected a model and a number|could not convert"):
        gateway_counts(page, "")


def test_samples_of_another_form_are_not_taken_for_none() -> None:
    page = generate_latest(Page(m=RequestCounts(7))).replace(b'requests_total{model="m"}', b'requests_total{other="m"}')
    with pytest.raises(ValueError, match="expected a model and a number"):
        gateway_counts(page, "")


def page_with_round_trips(**seconds: float) -> bytes:
    """By name of the host."""
    family = GaugeMetricFamily("isochrone_gateway_worker_round_trip_seconds", "-", labels=("worker",))
    for host, each in seconds.items():
        family.add_metric((f"{host}:8000",), each)

    class Family(Collector):
        def collect(self) -> Any:
            yield family

    return generate_latest(Page(m=RequestCounts(7))) + generate_latest(Family())


def test_round_trips_are_by_the_names_of_workers() -> None:
    page, names = page_with_round_trips(near=1.5e-05, far=0.04, other=1.0), {"near:8000": "a", "far:8000": "b"}
    assert gateway_counts(page, "", names).round_trips == {"a": 1.5e-05, "b": 0.04}
    assert gateway_counts(page, "").round_trips == {}
    assert gateway_counts(page, "", names).models == {"m": RequestCounts(7)}


def test_a_gateway_may_have_measured_none() -> None:
    names = {"near:8000": "a"}
    assert gateway_counts(page_with_round_trips(), "", names).round_trips == {}
    assert gateway_counts(generate_latest(Page()), "", names).round_trips == {}, "an earlier release"


def test_round_trips_of_another_form_are_not_taken_for_none() -> None:
    page, names = page_with_round_trips(near=0.5), {"near:8000": "a"}
    for other in (page.replace(b"} 0.5", b"} NaN"), page.replace(b'{worker="', b'{address="')):
        with pytest.raises(ValueError, match="expected a worker and a number"):
            gateway_counts(other, "", names)


def test_a_workers_page_gives_statistics_by_model_and_version() -> None:
    statistics = ModelStatistics("m", "3")
    statistics.record_batch(2, 10, 100, 1)
    statistics.record_batch(2, 10, 100, 1)
    statistics.record_batch(4, 20, 200, 2)
    page = json.dumps({"model_stats": [model_statistics_json(statistics.to_protobuf())]}).encode()
    found = worker_statistics(page, "i", {("m", "3"): ModelConfiguration(4)})
    batches = {2: BatchCounts(2, 222), 4: BatchCounts(1, 222)}
    assert found.incarnation == "i"
    assert found.models == {"m": {"3": VersionStatistics(batches, configuration=ModelConfiguration(4))}}
    assert worker_statistics(page, "i", {}).models["m"]["3"].configuration is None


def test_numbers_may_be_strings_and_times_are_summed() -> None:
    duration = {"count": "5", "ns": "1000"}
    model = {
        "name": "m",
        "inference_stats": {"success": {"count": "7", "ns": "1"}, "queue": duration, "fail": {"count": "2"}},
        "batch_stats": [
            {"batch_size": "1", "compute_input": duration, "compute_infer": duration, "compute_output": duration}
        ],
    }
    found = worker_statistics(json.dumps({"model_stats": [model]}).encode(), "", {})
    assert found.models == {"m": {"": VersionStatistics({1: BatchCounts(5, 3000)}, 1000, 5, 7, failures=2)}}


@pytest.mark.parametrize("page", [b"", b"[]", b"<html>", b'{"model_stats": [{"name": 1}]}'])
def test_a_page_that_is_not_a_workers_is_no_reading(page: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        worker_statistics(page, "", {})


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({}, 1),
        ({"instance_group": []}, 1),
        ({"instance_group": [{"count": 3}]}, 3),
        ({"instance_group": [{"count": 2, "gpus": [0, 1]}, {"count": 1}]}, 5),
        ({"instance_group": [{"count": 2}, {"count": 8, "passive": True}]}, 2),
        ({"instance_group": [{"count": 0}]}, 1),
    ],
)
def test_instances_are_counted_per_gpu_and_passive_ones_are_not(config: object, count: int) -> None:
    assert model_configuration(json.dumps(config).encode()) == ModelConfiguration(count)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('backend: "onnxruntime" sequence_batching { }', ModelConfiguration()),
        ("model_transaction_policy { decoupled: true }", ModelConfiguration(has_batch_times=False)),
        ('backend: "generation"', ModelConfiguration(has_batch_times=False)),
        (
            'platform: "ensemble" ensemble_scheduling { step { model_name: "a" model_version: -1 }'
            ' step { model_name: "b" } step { model_name: "a" } }',
            ModelConfiguration(steps=("a", "b", "a")),
        ),
    ],
)
def test_a_configuration_as_a_worker_writes_it_says_what_its_times_are(text: str, expected: ModelConfiguration) -> None:
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert model_configuration(json.dumps(model_config_json(config)).encode()) == expected
