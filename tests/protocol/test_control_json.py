"""The JSON of metadata, statistics, index and configuration, against protobuf's own printer where they should agree."""

from __future__ import annotations

import json

import msgspec
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2, service_pb2

from isochrone.protocol.control_json import (
    message_json,
    model_config_json,
    model_statistics_json,
    repository_index_json,
)

DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


def test_server_metadata():
    message = service_pb2.ServerMetadataResponse(name="isochrone", version="1", extensions=["a", "b"])
    assert message_json(message) == {"name": "isochrone", "version": "1", "extensions": ["a", "b"]}


def test_model_metadata_has_shapes_as_numbers():
    tensor = service_pb2.ModelMetadataResponse.TensorMetadata(name="x", datatype="FP32", shape=[-1, 2**40])
    message = service_pb2.ModelMetadataResponse(name="m", versions=["1"], platform="p", inputs=[tensor])
    assert message_json(message) == {
        "name": "m",
        "versions": ["1"],
        "platform": "p",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2**40]}],
        "outputs": [],
    }


def test_statistics_hold_every_duration_though_none_was_recorded():
    message = service_pb2.ModelStatisticsResponse()
    message.model_stats.add(name="m", version="1")
    (stats,) = model_statistics_json(message)["model_stats"]
    assert stats["inference_stats"] == {name: {"count": 0, "ns": 0} for name in DURATIONS}
    assert (stats["inference_count"], stats["execution_count"], stats["last_inference"]) == (0, 0, 0)
    assert (stats["batch_stats"], stats["memory_usage"], stats["response_stats"]) == ([], [], {})


def test_statistics_are_numbers_beyond_32_bits():
    message = service_pb2.ModelStatisticsResponse()
    model = message.model_stats.add(name="m", version="1", inference_count=2**60)
    model.inference_stats.queue.count = 3
    model.inference_stats.queue.ns = 2**63 + 1
    batch = model.batch_stats.add(batch_size=8)
    batch.compute_infer.ns = 5
    model.response_stats["0"].success.count = 1
    (stats,) = msgspec.json.decode(msgspec.json.encode(model_statistics_json(message)))["model_stats"]
    assert stats["inference_count"] == 2**60
    assert stats["inference_stats"]["queue"] == {"count": 3, "ns": 2**63 + 1}
    nothing = {"count": 0, "ns": 0}
    assert stats["batch_stats"] == [
        {"batch_size": 8, "compute_input": nothing, "compute_infer": {"count": 0, "ns": 5}, "compute_output": nothing}
    ]
    assert stats["response_stats"]["0"]["success"]["count"] == 1


def test_the_index_is_a_list():
    message = service_pb2.RepositoryIndexResponse()
    message.models.add(name="m", version="1", state="READY")
    assert repository_index_json(message) == [{"name": "m", "version": "1", "state": "READY", "reason": ""}]
    assert repository_index_json(service_pb2.RepositoryIndexResponse()) == []


CONFIG = """
name: "m" backend: "onnxruntime" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ 4 ] } }
output { name: "y" data_type: TYPE_STRING dims: [ 1 ] label_filename: "labels.txt" }
version_policy { specific { versions: [ 1, 3 ] } }
dynamic_batching {
  preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100
  priority_queue_policy { key: 2 value { timeout_action: DELAY default_timeout_microseconds: 7 } }
}
instance_group { count: 2 kind: KIND_CPU }
parameters { key: "threads" value { string_value: "2" } }
metric_tags { key: "a" value: "b" }
"""


def test_configuration_as_triton_prints_it():
    config = text_format.Parse(CONFIG, model_config_pb2.ModelConfig())
    rendered = model_config_json(config)
    assert rendered["input"][0]["data_type"] == "TYPE_FP32"
    assert rendered["input"][0]["dims"] == [-1, 4]
    assert rendered["input"][0]["optional"] is False
    assert rendered["output"][0]["label_filename"] == "labels.txt"
    assert "reshape" not in rendered["output"][0]
    assert rendered["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    assert rendered["dynamic_batching"]["priority_queue_policy"]["2"]["timeout_action"] == "DELAY"
    assert rendered["version_policy"] == {"specific": {"versions": [1, 3]}}
    assert rendered["instance_group"][0]["kind"] == "KIND_CPU"
    assert rendered["parameters"] == {"threads": {"string_value": "2"}}
    assert "sequence_batching" not in rendered


def test_configuration_survives_the_way_back():
    """Clients send a configuration they were shown back to the server, to load a model with it."""
    config = text_format.Parse(CONFIG, model_config_pb2.ModelConfig())
    text = msgspec.json.encode(model_config_json(config)).decode()
    assert json_format.Parse(text, model_config_pb2.ModelConfig()) == config


def test_only_the_numbers_differ_from_protobufs_own_printer():
    config = text_format.Parse(CONFIG, model_config_pb2.ModelConfig())
    theirs = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )

    def without_numbers(value):
        if isinstance(value, dict):
            return {key: without_numbers(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [without_numbers(inner) for inner in value]
        return str(value)

    assert without_numbers(model_config_json(config)) == without_numbers(theirs)
    assert json.loads(json.dumps(model_config_json(config))) == model_config_json(config)
