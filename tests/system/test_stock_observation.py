"""What a server says of itself: health, metadata, configuration, statistics, metrics, settings, timing, load."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import struct
from typing import Any

import grpc
import h2.connection
import h2.events
import numpy as np
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from stock_clients import StockClient
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from server_process import ServerProcess
from watching import metrics

SIXTEEN = np.arange(16, dtype=np.float32).reshape(1, 16)
FOUR = np.arange(4, dtype=np.float32).reshape(1, 4)
INFER_BODY = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[2],"data":[1,2]}]}'


class TestMetadata:
    def test_health(self, client: StockClient) -> None:
        assert client.call("is_server_live")
        assert client.call("is_server_ready")
        assert client.call("is_model_ready", "add_sub")
        assert client.call("is_model_ready", "add_sub", "1")
        assert not client.call("is_model_ready", "add_sub", "9")

    def test_server(self, client: StockClient) -> None:
        metadata = client.control("get_server_metadata")
        assert metadata["name"] == "isochrone"
        assert re.fullmatch(r"\d+\.\d+\.\d+", metadata["version"])
        assert set(metadata["extensions"]) == {
            *("classification", "sequence", "model_repository", "model_repository(unload_dependents)"),
            *("schedule_policy", "model_configuration", "system_shared_memory", "binary_tensor_data"),
            *("parameters", "statistics", "logging"),
        }

    def test_model(self, client: StockClient) -> None:
        metadata = client.control("get_model_metadata", "add_sub")
        assert metadata["name"] == "add_sub"
        assert metadata["versions"] == ["1"]
        assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT0", "INPUT1"]
        assert [int(size) for size in metadata["outputs"][0]["shape"]] == [-1, 16]
        assert metadata["outputs"][0]["datatype"] == "FP32"
        assert client.control("get_model_metadata", "versions")["versions"] == ["1", "2"]

    def test_config(self, client: StockClient) -> None:
        config = client.control("get_model_config", "add_sub")
        config = config if client.is_http else config["config"]
        assert config["name"] == "add_sub"
        assert config["max_batch_size"] == 8
        assert config["input"][0]["data_type"] == "TYPE_FP32"
        assert [int(size) for size in config["input"][0]["dims"]] == [16]
        assert "dynamic_batching" in config

    def test_a_config_completed_from_the_file(self, client: StockClient) -> None:
        config = client.control("get_model_config", "no_config")
        config = config if client.is_http else config["config"]
        assert config["input"][0]["name"] == "X"
        assert config["output"][0]["name"] == "Y"

    def test_index(self, client: StockClient) -> None:
        rows = client.control("get_model_repository_index")
        rows = rows if client.is_http else rows["models"]
        found = {(row["name"], row["version"]): row["state"] for row in rows}
        assert found[("versions", "1")] == found[("versions", "2")] == "READY"
        assert set(found.values()) == {"READY"}

    @pytest.mark.parametrize("method", ["get_model_metadata", "get_model_config"])
    def test_of_an_unknown_model(self, client: StockClient, method: str) -> None:
        with pytest.raises(
            InferenceServerException, match="Request for unknown model: 'nobody' is not found"
        ) as caught:
            client.call(method, "nobody")
        assert caught.value.status() == ("404" if client.is_http else "StatusCode.NOT_FOUND")

    @pytest.mark.parametrize(
        ("model", "version", "words"),
        [
            ("nobody", "", "requested model 'nobody' is not available"),
            ("versions", "9", "requested model version is not available for model 'versions'"),
        ],
    )
    def test_statistics_of_an_unknown_model(self, client: StockClient, model: str, version: str, words: str) -> None:
        with pytest.raises(InferenceServerException, match=words) as caught:
            client.call("get_inference_statistics", model, version)
        assert caught.value.status() == ("400" if client.is_http else "StatusCode.INVALID_ARGUMENT")

    def test_an_unknown_model_is_not_ready(self, client: StockClient) -> None:
        assert client.call("is_model_ready", "nobody") is False
        assert client.call("is_model_ready", "versions", "9") is False
        assert client.call("is_model_ready", "versions", "2") is True


class TestStatistics:
    def test_counts_equal_what_was_sent(self, client: StockClient) -> None:
        before = client.count("classify")
        for rows in (1, 1, 3):
            client.infer("classify", {"X": np.ones((rows, 4), np.float32)})
        with pytest.raises(InferenceServerException):
            client.infer("classify", {"X": np.ones((1, 5), np.float32)})
        after = client.count("classify")
        grown = {key: after[key] - before[key] for key in after if key != "batches"}
        assert grown["success"] == 3
        assert grown["inferences"] == 5
        assert grown["executions"] == 3
        for stage in ("queue", "compute_input", "compute_infer", "compute_output"):
            assert grown[stage] == 3, stage
        assert after["batches"][1] - before["batches"].get(1, 0) == 2
        assert after["batches"][3] - before["batches"].get(3, 0) == 1

    def test_a_failure_is_counted(self, client: StockClient) -> None:
        before = client.count("raises")
        with pytest.raises(InferenceServerException):
            client.infer("raises", {"X": FOUR - 1})
        after = client.count("raises")
        assert after["fail"] - before["fail"] == 1
        assert after["success"] == before["success"]

    def test_every_stage_has_numbers(self, client: StockClient) -> None:
        """perf_analyzer wants each of them, as numbers."""
        client.infer("add_sub", {"INPUT0": SIXTEEN, "INPUT1": SIXTEEN})
        (row,) = client.control("get_inference_statistics", "add_sub")["model_stats"]
        stages = row["inference_stats"]
        for stage in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"):
            assert int(stages[stage].get("count", 0)) >= 0
            assert int(stages[stage].get("ns", 0)) >= 0
        assert int(stages["success"]["ns"]) > 0
        assert int(row["last_inference"]) > 1_600_000_000_000

    def test_of_every_model(self, client: StockClient) -> None:
        rows = client.control("get_inference_statistics")["model_stats"]
        assert {("versions", "1"), ("versions", "2"), ("add_sub", "1")} <= {
            (row["name"], row["version"]) for row in rows
        }

    def test_the_metrics_page_agrees(self, client: StockClient, sample_server: ServerProcess) -> None:
        client.infer("add_sub", {"INPUT0": SIXTEEN, "INPUT1": SIXTEEN})
        counts = client.count("add_sub")
        families = {family.name: family for family in metrics(sample_server)}

        assert _of(families, "nv_inference_request_success", "add_sub") == counts["success"]
        assert _of(families, "nv_inference_count", "add_sub") == counts["inferences"]
        assert _of(families, "nv_inference_exec_count", "add_sub") == counts["executions"]
        for name in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
            assert _of(families, f"nv_inference_{name}_duration_us", "add_sub") >= 0
        assert _of(families, "nv_inference_request_duration_us", "add_sub") > 0
        assert _of(families, "nv_inference_pending_request_count", "add_sub") == 0


class TestSettings:
    def test_trace(self, client: StockClient) -> None:
        settings = client.control("get_trace_settings")
        settings = settings if client.is_http else settings["settings"]
        assert {"trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file"} <= set(settings)
        client.call("update_trace_settings", "add_sub", {"trace_rate": "77"})
        changed = client.control("get_trace_settings", "add_sub")
        assert "77" in json.dumps(changed)
        client.call("update_trace_settings", "add_sub", {"trace_rate": None})
        restored = client.control("get_trace_settings", "add_sub")
        assert "77" not in json.dumps(restored)

    def test_log(self, client: StockClient) -> None:
        settings = client.control("get_log_settings")
        settings = settings if client.is_http else settings["settings"]
        assert {"log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"} <= set(settings)
        changed = client.control("update_log_settings", {"log_verbose_level": 2})
        assert "2" in json.dumps(changed)
        client.call("update_log_settings", {"log_verbose_level": 0})
        with pytest.raises(InferenceServerException, match="log file location can not be updated"):
            client.call("update_log_settings", {"log_file": "elsewhere.log"})


class TestTimingAndLoad:
    def test_server_timing(self, sample_server: ServerProcess) -> None:
        headers = _headers_of_infer(sample_server, {"x-isochrone-timing": "1"})
        stages = {
            part.split(";")[0].strip(): float(part.split("dur=")[1]) for part in headers["server-timing"].split(",")
        }
        assert {"queue", "compute"} <= set(stages)
        assert all(value >= 0 for value in stages.values())
        assert "server-timing" not in _headers_of_infer(sample_server, {})

    def test_server_timing_over_grpc(self, sample_server: ServerProcess) -> None:
        trailers = _trailers_of_infer(sample_server, ("x-isochrone-timing", "1"))
        assert "dur=" in str(trailers["server-timing"])

    def test_load_as_json(self, sample_server: ServerProcess) -> None:
        text = _headers_of_infer(sample_server, {"endpoint-load-metrics-format": "json"})["endpoint-load-metrics"]
        assert text.startswith("JSON ")
        report = json.loads(text.removeprefix("JSON "))
        assert 0 <= report["mem_utilization"] <= 1
        assert {"queue_depth", "in_flight", "estimated_wait_us"} <= set(report["named_metrics"])

    def test_load_as_text(self, sample_server: ServerProcess) -> None:
        text = _headers_of_infer(sample_server, {"endpoint-load-metrics-format": "text"})["endpoint-load-metrics"]
        assert text.startswith("TEXT ")
        pairs = dict(pair.strip().split("=") for pair in text.removeprefix("TEXT ").split(","))
        assert float(pairs["named_metrics.queue_depth"]) >= 0

    def test_load_over_grpc(self, sample_server: ServerProcess) -> None:
        """xds.data.orca.v3.OrcaLoadReport: field 2 is mem_utilization, 8 named_metrics."""
        # Read from the wire: grpcio keeps this one to itself.
        trailers = _wire_trailers(sample_server, ("endpoint-load-metrics-format", "bin"))
        encoded = trailers[b"endpoint-load-metrics-bin"]
        value = base64.b64decode(encoded + b"=" * (-len(encoded) % 4))
        assert value[0] == 2 << 3 | 1
        assert 0 <= struct.unpack_from("<d", value, 1)[0] <= 1
        for name in (b"queue_depth", b"in_flight", b"estimated_wait_us"):
            # An entry of the map: the name as field 1, a double as field 2.
            assert b"\x0a" + bytes([len(name)]) + name + b"\x11" in value


class TestGrpcServices:
    def test_health(self, sample_server: ServerProcess) -> None:
        with grpc.insecure_channel(sample_server.grpc_url) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            serving = health_pb2.HealthCheckResponse.SERVING
            for name in ("", "inference.GRPCInferenceService"):
                assert stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60).status == serving
            watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
            assert next(watch).status == serving
            watch.cancel()
            with pytest.raises(grpc.RpcError) as caught:
                stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=60)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND

    def test_reflection(self, sample_server: ServerProcess) -> None:
        with grpc.insecure_channel(sample_server.grpc_url) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            assert "inference.GRPCInferenceService" in database.get_services()
            service = DescriptorPool(database).FindServiceByName("inference.GRPCInferenceService")
            expected = {
                method.name for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
            }
            assert {method.name for method in service.methods} == expected
            infer = service.methods_by_name["ModelInfer"].input_type
            assert "raw_input_contents" in infer.fields_by_name

    def test_an_unknown_method(self, sample_server: ServerProcess) -> None:
        with grpc.insecure_channel(sample_server.grpc_url) as channel:
            call: Any = channel.unary_unary("/inference.GRPCInferenceService/Nothing")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=60)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def _of(families: dict[str, Any], name: str, model: str) -> float:
    """The value of a counter or gauge; the parser takes "_total" off a counter's family and leaves it on samples."""
    for family in families.values():
        for sample in family.samples:
            if sample.name in (name, f"{name}_total") and sample.labels.get("model") == model:
                return float(sample.value)
    raise AssertionError(f"no {name} for {model}")


def _headers_of_infer(server: ServerProcess, headers: dict[str, str]) -> dict[str, str]:
    connection = http.client.HTTPConnection(server.http_url)
    connection.request("POST", "/v2/models/identity_int32/infer", INFER_BODY, headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()
    return {key.lower(): value for key, value in answer.getheaders()}


def _infer_request() -> Any:
    request = service_pb2.ModelInferRequest(model_name="identity_int32")
    request.inputs.add(name="IN", datatype="INT32", shape=[1])
    request.raw_input_contents.append(b"\1\0\0\0")
    return request


def _wire_trailers(server: ServerProcess, *metadata: tuple[str, str]) -> dict[bytes, bytes]:
    """The trailers of one ModelInfer as they come off the socket."""
    message = _infer_request().SerializeToString()
    peer = h2.connection.H2Connection()
    peer.initiate_connection()
    head = [(":method", "POST"), (":scheme", "http"), (":authority", "test"), ("content-type", "application/grpc")]
    head += [(":path", "/inference.GRPCInferenceService/ModelInfer"), ("te", "trailers"), *metadata]
    head.sort(key=lambda pair: not pair[0].startswith(":"))
    peer.send_headers(1, head)
    peer.send_data(1, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=60) as connection:
        connection.sendall(peer.data_to_send())
        while True:
            for event in peer.receive_data(connection.recv(65536)):
                if isinstance(event, h2.events.TrailersReceived):
                    return dict(event.headers)


def _trailers_of_infer(server: ServerProcess, *metadata: tuple[str, str]) -> dict[str, Any]:
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        _, call = stub.ModelInfer.with_call(_infer_request(), metadata=metadata, timeout=60)
    return dict(call.trailing_metadata())
