"""Who may change a server: a fleet's worker obeys its controller alone, files are refused, and so are foreign pages."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from stock_clients import KINDS, StockClient
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway_process import GatewayProcess, StartGateway
from hostile_client import HOST, ask
from isochrone.control.state.codec import decode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.workers.control import WorkerControl
from isochrone.protocol.access.control_token import HEADER
from isochrone.store.opening import open_store
from sample_models import plus_constant, write_models
from server_process import ServerProcess, StartServer
from watching import wait_for

CODE = base64.b64encode(b"raise SystemExit('it ran')\n").decode()
EVIL = json.dumps({"parameters": {"config": json.dumps({"backend": "python"}), "file:1/model.py": CODE}}).encode()
#: What a page of another site can make a browser send without asking first.
FOREIGN = {"Host": "10.9.8.7:8000", "Origin": "http://evil.example", "Content-Type": "text/plain"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("guarded") / "models", "identity_int32", "no_config")


@pytest.fixture(scope="module")
def member(server_factory: StartServer, repository: Path) -> Iterator[tuple[ServerProcess, WorkerRecord]]:
    """A worker of a fleet, and its record."""
    store = f"sqlite:{repository.parent / 'fleet.db'}"
    arguments = ("--model-control-mode", "explicit", "--load-model", "identity_int32", "--store", store)
    with server_factory(repository, *arguments, "--fleet", "farm", "--name", "w") as server:
        wait_for(lambda: _record(store) is not None)
        record = _record(store)
        assert record is not None
        yield server, record


@pytest.fixture(scope="module")
def alone(server_factory: StartServer, repository: Path) -> Iterator[ServerProcess]:
    """A worker of no fleet."""
    arguments = ("--model-control-mode", "explicit", "--load-model", "identity_int32")
    other = repository.with_name("alone")
    other.symlink_to(repository)
    with server_factory(other, *arguments) as server:
        yield server


def _record(url: str) -> WorkerRecord | None:
    async def read() -> WorkerRecord | None:
        store = open_store(url)
        try:
            entry = await store.get(Keys("farm").worker("w"))
            return decode(entry.value, WorkerRecord) if entry is not None else None
        finally:
            await store.close()

    return asyncio.run(read())


CHANGES = {
    "/v2/repository/models/no_config/load": b"{}",
    "/v2/repository/models/x/load": EVIL,
    "/v2/repository/models/identity_int32/unload": b"{}",
    "/v2/logging": b'{"log_verbose_level": 1}',
    "/v2/trace/setting": b'{"trace_rate": "5"}',
    "/v2/models/identity_int32/trace/setting": b'{"trace_rate": "5"}',
}


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("token", ["", "wrong", "\xff"])
def test_nobody_but_the_controller_changes_a_worker_of_a_fleet(
    member: tuple[ServerProcess, WorkerRecord], path: str, token: str
) -> None:
    server, _ = member
    for port in (server.http_port, server.grpc_port):
        answer = ask(port, "POST", path, CHANGES[path], {HEADER: token} if token else {})
        assert answer.status == 403, answer
        assert "isochrone rollout" in answer.error
    assert ask(server.http_port, "GET", "/v2/models/identity_int32/ready").status == 200
    assert ask(server.http_port, "GET", "/v2/models/no_config/ready").status != 200


def test_nor_over_grpc(member: tuple[ServerProcess, WorkerRecord]) -> None:
    server, record = member
    trace = service_pb2.TraceSettingRequest()
    trace.settings["trace_rate"].value.append("1")
    log = service_pb2.LogSettingsRequest()
    log.settings["log_verbose_level"].uint32_param = 0
    calls: Mapping[str, Any] = {
        "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest(model_name="no_config"),
        "RepositoryModelUnload": service_pb2.RepositoryModelUnloadRequest(model_name="identity_int32"),
        "TraceSetting": trace,
        "LogSettings": log,
    }
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for name, message in calls.items():
            with pytest.raises(grpc.RpcError) as caught:
                getattr(stub, name)(message)
            assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
            assert "isochrone rollout" in caught.value.details()
        # Reading is no change.
        assert stub.LogSettings(service_pb2.LogSettingsRequest()).settings
        assert stub.TraceSetting(service_pb2.TraceSettingRequest()).settings
        assert stub.RepositoryIndex(service_pb2.RepositoryIndexRequest()).models
        stub.LogSettings(log, metadata=((HEADER, record.control_token),))


def test_the_controller_does(member: tuple[ServerProcess, WorkerRecord]) -> None:
    _, record = member
    assert len(record.control_token) > 40

    async def drive() -> set[str]:
        control = WorkerControl(record)
        try:
            await control.serve("no_config", ["1"], 30)
            await control.unload("no_config")
            return set(await control.index())
        finally:
            await control.close()

    assert "no_config" in asyncio.run(drive())


def test_files_of_a_load_are_refused_by_default(alone: ServerProcess) -> None:
    answer = ask(alone.http_port, "POST", "/v2/repository/models/x/load", EVIL)
    assert answer.status == 403
    assert "--allow-file-overrides" in answer.error
    assert "it ran" not in alone.log_text()


@pytest.fixture(scope="module")
def gateways(
    server_factory: StartServer, gateway_factory: StartGateway, repository: Path
) -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
    """A gateway that refuses files and one that lets them through, to one worker that takes them."""
    arguments = ("--model-control-mode", "explicit", "--load-model", "identity_int32", "--allow-file-overrides")
    other = repository.with_name("taking_files")
    other.symlink_to(repository)
    with (
        server_factory(other, *arguments) as worker,
        gateway_factory([worker]) as refusing,
        gateway_factory([worker], "--allow-file-overrides") as allowing,
    ):
        yield refusing, allowing


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_refused_for_stock_clients_through_a_gateway(
    kind: str, gateways: tuple[GatewayProcess, GatewayProcess]
) -> None:
    refusing, allowing = gateways
    files = {"file:1/model.onnx": plus_constant(5)}
    config = json.dumps({"backend": "onnxruntime"})
    client = StockClient(kind, refusing)
    with pytest.raises(InferenceServerException, match="--allow-file-overrides"):
        client.call("load_model", "new", config=config, files=files)
    client.call("load_model", "no_config")
    client.call("unload_model", "no_config")
    client.close()
    client = StockClient(kind, allowing)
    client.call("load_model", "new", config=config, files=files)
    client.call("unload_model", "new")
    client.close()


def test_pages_of_other_sites_are_refused_on_every_port(alone: ServerProcess, gateway_factory: StartGateway) -> None:
    with gateway_factory([alone], "--allow-origin", "https://console.example") as gateway:
        ports = {
            alone.http_port: "/v2/health/live",
            alone.grpc_port: "/v2/health/live",
            alone.metrics_port: "/metrics",
            gateway.http_port: "/v2/health/live",
            gateway.metrics_port: "/metrics",
        }
        for port, path in ports.items():
            answer = ask(port, "GET", path, headers=FOREIGN)
            assert answer.status == 403, (port, answer)
            assert "--allow-origin" in answer.error
            assert ask(port, "GET", path, headers={"Host": f"{HOST}:{port}"}).status == 200
            own = {"Host": f"{HOST}:{port}", "Origin": f"http://{HOST}:{port}"}
            assert ask(port, "GET", path, headers=own).status == 200
        for port in (alone.http_port, gateway.http_port):
            assert ask(port, "POST", "/v2/repository/models/no_config/load", b"{}", FOREIGN).status == 403
        # What the gateway lets pass, the worker behind it does not judge again.
        body = json.dumps({"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [7]}]}).encode()
        allowed = {"Host": "gw.example", "Origin": "https://console.example"}
        assert ask(gateway.http_port, "POST", "/v2/models/identity_int32/infer", body, allowed).status == 200
        assert ask(alone.http_port, "POST", "/v2/models/identity_int32/infer", body, allowed).status == 403
