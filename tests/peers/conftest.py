"""Servers that the peer tests share: our worker, plain and over TLS, and Kubernetes' API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes_api import ApiServer
from worker_models import write_certificate, write_for_worker

from bench.worker.peers.process import PeerUnavailable
from server_process import ServerProcess, StartServer


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_for_worker(tmp_path_factory.mktemp("worker") / "models")


@pytest.fixture(scope="session")
def worker(server_factory: StartServer, repository: Path) -> Iterator[ServerProcess]:
    with server_factory(repository) as server:
        yield server


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def tls_worker(
    server_factory: StartServer, repository: Path, certificate: tuple[Path, Path]
) -> Iterator[ServerProcess]:
    with server_factory(repository, "--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1])) as server:
        yield server


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Of Kubernetes. A test that stops it starts it again."""
    try:
        server = ApiServer(tmp_path_factory.mktemp("cluster"))
    except PeerUnavailable as error:
        pytest.skip(str(error))
    with server:
        yield server
