"""Control calls through a gateway: what it says of itself, what it puts together of its workers, what it asks of all.

Versions too: a request without one is pinned to a version that most workers have, and never means two things.
"""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from stock_clients import KINDS, StockClient
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway_process import Fleet, StartGateway
from sample_models import plus_constant, write_config, write_models, write_onnx
from server_process import ServerProcess, StartServer
from watching import wait_for

FOUR = np.arange(4, dtype=np.float32).reshape(1, 4)
ONE = {"IN": np.array([1], np.int32)}


def ask(server: ServerProcess, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://{server.http_url}{path}", body, names, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read()
    return status, json.loads(text) if text else None


class TestOfItself:
    def test_health(self, gateway_client: StockClient) -> None:
        assert gateway_client.call("is_server_live")
        assert gateway_client.call("is_server_ready")
        assert gateway_client.call("is_model_ready", "add_sub")
        assert gateway_client.call("is_model_ready", "versions", "2")
        assert not gateway_client.call("is_model_ready", "versions", "3")
        assert not gateway_client.call("is_model_ready", "nobody")

    def test_metadata(self, gateway_client: StockClient) -> None:
        metadata = gateway_client.control("get_server_metadata")
        assert metadata["name"] == "isochrone-gateway"
        assert "binary_tensor_data" in metadata["extensions"]

    def test_without_workers_it_is_live_and_not_ready(self, gateway_factory: StartGateway) -> None:
        with gateway_factory(["127.0.0.1:9"]) as gateway:
            for kind in KINDS:
                with closing(StockClient(kind, gateway)) as client:
                    assert client.call("is_server_live")
                    assert not client.call("is_server_ready")
                    with pytest.raises(InferenceServerException) as caught:
                        client.infer("add_sub", ONE)
                    assert caught.value.status() == ("503" if client.is_http else "StatusCode.UNAVAILABLE")
                    assert "127.0.0.1:9" in caught.value.message()

    def test_reflection_and_health_service(self, fleet: Fleet) -> None:
        """Asked by raw messages: Health.Check and Watch, and a list of services."""
        with grpc.insecure_channel(fleet.gateway.grpc_url) as channel:
            assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60) == b"\x08\x01"
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=60)
            assert next(watch) == b"\x08\x01"
            watch.cancel()
            for version in ("v1", "v1alpha"):
                path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
                (listed,) = channel.stream_stream(path)(iter([b"\x3a\x00"]), timeout=60)
                assert b"inference.GRPCInferenceService" in listed

    def test_an_unknown_method(self, fleet: Fleet) -> None:
        with grpc.insecure_channel(fleet.gateway.grpc_url) as channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/Nonsense")(b"", timeout=60)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


class TestOfOneModel:
    @pytest.mark.parametrize("method", ["get_model_metadata", "get_model_config"])
    def test_as_a_worker_tells_it(self, gateway_client: StockClient, fleet: Fleet, method: str) -> None:
        with closing(StockClient(gateway_client.kind, fleet.workers[0])) as direct:
            for name, version in (("add_sub", ""), ("versions", "1"), ("repeat", "")):
                assert gateway_client.control(method, name, version) == direct.control(method, name, version)

    @pytest.mark.parametrize("method", ["get_model_metadata", "get_model_config", "get_inference_statistics"])
    def test_errors_too(self, gateway_client: StockClient, fleet: Fleet, method: str) -> None:
        with closing(StockClient(gateway_client.kind, fleet.workers[0])) as direct:
            told = []
            for client in (gateway_client, direct):
                with pytest.raises(InferenceServerException) as caught:
                    client.control(method, "nobody")
                told.append((caught.value.status(), caught.value.message().split(": ", 2)[-1]))
        assert told[0] == told[1]


class TestMerged:
    def test_statistics_are_the_sum(self, gateway_client: StockClient, fleet: Fleet) -> None:
        with (
            closing(StockClient("http", fleet.workers[0])) as one,
            closing(StockClient("http", fleet.workers[1])) as two,
        ):

            def have_both_their_share() -> bool:
                for _ in range(8):
                    gateway_client.infer("identity_int32", ONE)
                return all(client.count("identity_int32")["success"] > 0 for client in (one, two))

            wait_for(have_both_their_share)
            parts = [client.count("identity_int32") for client in (one, two)]
        total = gateway_client.count("identity_int32")
        for key in ("inferences", "executions", "success", "fail", "queue", "compute_infer"):
            assert total[key] == parts[0][key] + parts[1][key]
        assert total["batches"].keys() == parts[0]["batches"].keys() | parts[1]["batches"].keys()

    @pytest.mark.parametrize("path", ["/v2/models/stats", "/v2/models/add_sub/stats", "/v2", "/v2/models/add_sub"])
    def test_head_answers_as_get_without_the_body(self, fleet: Fleet, path: str) -> None:
        assert ask(fleet.gateway, "HEAD", path) == (200, None)

    def test_statistics_per_worker(self, fleet: Fleet) -> None:
        status, answer = ask(fleet.gateway, "GET", "/v2/models/identity_int32/stats", x_isochrone_per_worker="1")
        assert status == 200
        assert set(answer["workers"]) == {worker.http_url for worker in fleet.workers}
        for worker in fleet.workers:
            (mine,) = answer["workers"][worker.http_url]["model_stats"]
            (direct,) = ask(worker, "GET", "/v2/models/identity_int32/stats")[1]["model_stats"]
            assert mine["inference_stats"]["success"]["count"] == direct["inference_stats"]["success"]["count"]

    def test_index(self, gateway_client: StockClient, fleet: Fleet) -> None:
        with closing(StockClient(gateway_client.kind, fleet.workers[0])) as direct:
            merged = gateway_client.control("get_model_repository_index")
            told = direct.control("get_model_repository_index")
        rows, expected = (answer if isinstance(answer, list) else answer["models"] for answer in (merged, told))
        names = [(row["name"], row["version"], row["state"]) for row in rows]
        assert sorted(names) == sorted((row["name"], row["version"], row["state"]) for row in expected)

    def test_index_per_worker(self, fleet: Fleet) -> None:
        _, rows = ask(fleet.gateway, "POST", "/v2/repository/index", b"{}", x_isochrone_per_worker="1")
        seen = {row["worker"] for row in rows if row["name"] == "add_sub"}
        assert seen == {worker.http_url for worker in fleet.workers}


@pytest.fixture
def explicit_fleet(
    tmp_path: Path, server_factory: StartServer, gateway_factory: StartGateway
) -> Iterator[tuple[Any, tuple[ServerProcess, ...]]]:
    """Workers that load on request, each with a repository of its own."""
    repositories = [write_models(tmp_path / f"models{number}", "identity_int32", "raises") for number in range(2)]
    mode = ("--model-control-mode", "explicit", "--load-model", "identity_int32")
    with (
        server_factory(repositories[0], *mode) as one,
        server_factory(repositories[1], *mode) as two,
        gateway_factory([one, two]) as gateway,
    ):
        gateway.wait_workers(2)
        yield gateway, (one, two)


def test_load_and_unload_reach_every_worker(explicit_fleet: tuple[Any, tuple[ServerProcess, ...]]) -> None:
    gateway, workers = explicit_fleet
    for kind in KINDS:
        with closing(StockClient(kind, gateway)) as client:
            client.call("load_model", "raises")
            # At once: the gateway answers the load when it knows what its workers serve now.
            assert client.call("is_model_ready", "raises") is True
            assert [ask(worker, "GET", "/v2/models/raises/ready")[0] for worker in workers] == [200, 200]
            assert np.array_equal(client.infer("raises", {"X": FOUR}).as_numpy("Y"), FOUR)
            client.call("unload_model", "raises")
            assert client.call("is_model_ready", "raises") is False
            assert [ask(worker, "GET", "/v2/models/raises/ready")[0] for worker in workers] == [400, 400]
            with pytest.raises(InferenceServerException, match=workers[0].http_url) as caught:
                client.call("load_model", "nobody")
            assert "nobody" in caught.value.message()
    # One has it, the other has not: requests go to the one.
    with closing(StockClient("http", workers[1])) as direct:
        direct.call("load_model", "raises")
    with closing(StockClient("grpc", gateway)) as client:
        wait_for(lambda: bool(client.call("is_model_ready", "raises")))
        for _ in range(10):
            assert np.array_equal(client.infer("raises", {"X": FOUR}).as_numpy("Y"), FOUR)
        assert client.count("raises")["success"] >= 10


def test_metadata_by_another_name_and_with_what_all_workers_have(
    sample_server: ServerProcess, fleet: Fleet, gateway_factory: StartGateway
) -> None:
    """The sample server allows shared memory, the fleet's workers do not."""
    for workers, expected in (([sample_server], True), ([sample_server, fleet.workers[0]], False)):
        with gateway_factory(workers, "--server-name", "triton") as gateway:
            gateway.wait_workers(len(workers))
            for kind in ("http", "grpc"):
                with closing(StockClient(kind, gateway)) as client:
                    metadata = client.control("get_server_metadata")
                assert metadata["name"] == "triton", kind
                assert ("system_shared_memory" in metadata["extensions"]) is expected, kind


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_calls_of_a_compressing_channel(fleet: Fleet, compression: grpc.Compression) -> None:
    """Such a channel compresses every message that gets smaller, those of control calls too."""
    name = "add_sub"
    filler = "/" * 4096  # some messages are too small to be worth it
    with grpc.insecure_channel(fleet.gateway.grpc_url, compression=compression) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
        assert stub.ServerReady(service_pb2.ServerReadyRequest()).ready
        assert stub.ModelReady(service_pb2.ModelReadyRequest(name=name)).ready
        assert not stub.ModelReady(service_pb2.ModelReadyRequest(name=filler)).ready
        assert stub.ServerMetadata(service_pb2.ServerMetadataRequest()).name == "isochrone-gateway"
        assert stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=name)).name == name
        assert stub.ModelConfig(service_pb2.ModelConfigRequest(name=name)).config.name == name
        for repository in ("", filler):
            index = stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(repository_name=repository))
            assert name in {row.name for row in index.models}
        statistics = stub.ModelStatistics(service_pb2.ModelStatisticsRequest(name=name))
        assert statistics.model_stats[0].name == name
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelStatistics(service_pb2.ModelStatisticsRequest(name=filler))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        # What a load brings is looked into behind its compression, too.
        load = service_pb2.RepositoryModelLoadRequest(model_name=name)
        load.parameters["file:1/model.py"].bytes_param = b" " * 4096
        with pytest.raises(grpc.RpcError, match="--allow-file-overrides") as caught:
            stub.RepositoryModelLoad(load)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_settings_reach_every_worker(fleet: Fleet) -> None:
    for level in ("2", "1"):
        body = json.dumps({"log_verbose_level": int(level)}).encode()
        assert ask(fleet.gateway, "POST", "/v2/logging", body)[0] == 200
        seen = [ask(worker, "GET", "/v2/logging")[1]["log_verbose_level"] for worker in fleet.workers]
        assert [str(value) for value in seen] == [level, level]
    ask(fleet.gateway, "POST", "/v2/logging", b'{"log_verbose_level": 0}')


@pytest.fixture(scope="module")
def uneven(
    tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer, gateway_factory: StartGateway
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("uneven")
    both = write_models(folder / "both", "versions")
    only = folder / "only"
    shutil.copytree(both, only)
    shutil.rmtree(only / "versions" / "2")
    with server_factory(both) as one, server_factory(only) as two, gateway_factory([two, one]) as gateway:
        gateway.wait_workers(2)
        with closing(StockClient("http", gateway)) as client:
            wait_for(lambda: bool(client.call("is_model_ready", "versions", "2")))
        yield gateway


class TestVersions:
    """One worker has versions 1 and 2, the other only 1."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_version_means_what_most_have(self, uneven: Any, kind: str) -> None:
        with closing(StockClient(kind, uneven)) as client:
            answers = {client.infer("versions", {"X": FOUR}).as_numpy("Y")[0, 0] for _ in range(10)}
        assert answers == {1.0}

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_version_goes_where_it_is(self, uneven: Any, kind: str) -> None:
        with closing(StockClient(kind, uneven)) as client:
            for version, added in (("2", 2.0), ("1", 1.0)):
                for _ in range(5):
                    result = client.infer("versions", {"X": FOUR}, model_version=version)
                    assert result.as_numpy("Y")[0, 0] == added

    def test_many_guessed_versions_never_meet_a_real_one(self, uneven: Any) -> None:
        with closing(StockClient("grpc", uneven)) as client:
            for version in range(3, 90):
                with pytest.raises(InferenceServerException, match=f"version {version} is not found"):
                    client.infer("versions", {"X": FOUR}, model_version=str(version))
            assert client.infer("versions", {"X": FOUR}).as_numpy("Y")[0, 0] == 1.0

    def test_the_last_model_name_of_a_message_counts(self, uneven: Any) -> None:
        """protobuf's rule, wherever the fields stand: the gateway routes the model that the worker will run."""
        message = service_pb2.ModelInferRequest(model_name="nobody")
        message.inputs.add(name="X", datatype="FP32", shape=[1, 4])
        message.raw_input_contents.append(FOUR.tobytes())
        named = message.SerializeToString() + service_pb2.ModelInferRequest(model_name="versions").SerializeToString()
        message.model_name = "versions"
        known = message.SerializeToString()
        renamed = known + service_pb2.ModelInferRequest(model_name="nobody").SerializeToString()
        with grpc.insecure_channel(uneven.grpc_url) as channel:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=bytes,
                response_deserializer=service_pb2.ModelInferResponse.FromString,
            )
            for _ in range(3):
                assert call(known, timeout=60).model_name == "versions"
                assert call(named, timeout=60).model_name == "versions"
                with pytest.raises(grpc.RpcError, match="unknown model: 'nobody'"):
                    call(renamed, timeout=60)

    def test_on_streams_the_first_message_decides_for_its_model(self, uneven: Any) -> None:
        def requests() -> Iterator[Any]:
            for version in ("2", "", "2"):
                request = service_pb2.ModelInferRequest(model_name="versions", model_version=version)
                request.inputs.add(name="X", datatype="FP32", shape=[1, 4])
                request.raw_input_contents.append(FOUR.tobytes())
                yield request

        with grpc.insecure_channel(uneven.grpc_url) as channel:
            answers = list(service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests(), timeout=60))
        assert [answer.infer_response.model_version for answer in answers] == ["2", "1", "2"]


def test_a_new_version_is_seen(tmp_path: Path, server_factory: StartServer, gateway_factory: StartGateway) -> None:
    """A worker that follows its files gets version 2; soon requests without a version mean it."""
    repository = tmp_path / "models"
    write_onnx(repository / "plus", plus_constant(1), 1)
    write_config(repository / "plus", 'backend: "onnxruntime"\nmax_batch_size: 8')
    poll = ("--model-control-mode", "poll", "--repository-poll-secs", "0.2")
    with (
        server_factory(repository, *poll) as worker,
        gateway_factory([worker]) as gateway,
        closing(StockClient("http", gateway)) as client,
    ):
        assert client.infer("plus", {"X": FOUR}).as_numpy("Y")[0, 0] == 1.0
        # Moved into place whole: the worker may look at any moment.
        write_onnx(tmp_path / "staged", plus_constant(2), 2)
        (tmp_path / "staged" / "2").rename(repository / "plus" / "2")
        wait_for(lambda: bool(client.infer("plus", {"X": FOUR}).as_numpy("Y")[0, 0] == 2.0))
