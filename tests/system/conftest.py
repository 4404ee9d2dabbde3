"""Servers and stock clients the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stock_clients import KINDS, StockClient
from triton_models import TritonWorker, write_basics

from gateway_process import Fleet, StartGateway
from sample_models import ALL, write_models
from server_process import ServerProcess, StartServer
from watching import wait_for


@pytest.fixture(scope="session")
def sample_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every sample model but torch's, whose import takes longer than all the rest; nobody changes it."""
    names = [name for name in ALL if name != "torch_script"]
    return write_models(tmp_path_factory.mktemp("sample") / "models", *names)


@pytest.fixture(scope="session")
def sample_server(sample_repository: Path, server_factory: StartServer) -> Iterator[ServerProcess]:
    """Serves every sample model, with shared memory and a response cache."""
    with server_factory(sample_repository, "--allow-shared-memory", "--cache-config", "local,size=1048576") as server:
        yield server


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, sample_server: ServerProcess) -> Iterator[StockClient]:
    """Each of the four stock clients in turn."""
    made = StockClient(request.param, sample_server)
    yield made
    made.close()


@pytest.fixture(params=["http", "http.aio"])
def http_client(request: pytest.FixtureRequest, sample_server: ServerProcess) -> Iterator[StockClient]:
    made = StockClient(request.param, sample_server)
    yield made
    made.close()


@pytest.fixture(params=["grpc", "grpc.aio"])
def grpc_client(request: pytest.FixtureRequest, sample_server: ServerProcess) -> Iterator[StockClient]:
    made = StockClient(request.param, sample_server)
    yield made
    made.close()


@pytest.fixture(scope="session")
def fleet(sample_repository: Path, server_factory: StartServer, gateway_factory: StartGateway) -> Iterator[Fleet]:
    """Two workers with every sample model, which nobody stops or changes, and a gateway in front of them."""
    with (
        server_factory(sample_repository) as one,
        server_factory(sample_repository) as other,
        gateway_factory([one, other]) as gateway,
    ):
        gateway.wait_workers(2)
        yield Fleet(gateway, (one, other))


@pytest.fixture(params=KINDS)
def gateway_client(request: pytest.FixtureRequest, fleet: Fleet) -> Iterator[StockClient]:
    """Each of the four stock clients in turn, connected to the gateway."""
    made = StockClient(request.param, fleet.gateway)
    yield made
    made.close()


@pytest.fixture(scope="session")
def triton_worker(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonWorker]:
    """For models that each test writes and loads; requests that unloading waits for get two seconds."""
    repository = write_basics(tmp_path_factory.mktemp("triton") / "models")
    control = ("--model-control-mode=explicit", "--load-model=*", "--exit-timeout-secs=2")
    with server_factory(repository, *control, "--cache-config", "local,size=1048576") as server:
        yield TritonWorker(server, repository)


@pytest.fixture
def worker(triton_worker: TritonWorker) -> Iterator[TritonWorker]:
    """After each test nothing is in flight, and no thread, module or file of its models is left."""
    assert triton_worker.is_fine()
    before = triton_worker.inside()
    yield triton_worker
    assert triton_worker.is_fine()
    wait_for(lambda: triton_worker.in_flight() == 0)
    for path in triton_worker.repository.iterdir():
        if path.name not in ("good", "inside"):
            triton_worker.unload(path.name)
    wait_for(lambda: triton_worker.inside()["modules"] == before["modules"])
    wait_for(lambda: len(triton_worker.inside()["threads"]) <= len(before["threads"]))
