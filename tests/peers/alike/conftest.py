"""Real Triton, our worker and a gateway before it, all with the same models; and the count of what was compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from calls import COMPARED, Pair, Server, until
from peer_models import entered, write_models

from bench.worker.peers import triton
from bench.worker.peers.process import environment_python, scratch
from gateway_process import StartGateway
from server_process import StartServer


@dataclass(frozen=True)
class Trio:
    triton: Server
    worker: Server
    gateway: Server
    #: The models that wait do so while this file exists.
    hold: Path


@pytest.fixture(scope="session")
def trio(server_factory: StartServer, gateway_factory: StartGateway) -> Iterator[Trio]:
    control = ("--model-control-mode=explicit", "--load-model=*")
    with scratch("alike") as directory:
        hold = directory / "hold"
        traced = ("--trace-config=rate=11", f"--trace-config=triton,file={directory}/trace.json")
        theirs = write_models(directory / "theirs", hold, for_triton=True)
        ours = write_models(directory / "ours", hold, for_triton=False)
        # A model that fails to load here is no reason to be taken for dead there.
        flags = (*control, *traced, "--strict-readiness=false")
        with (
            triton.serve_repository(theirs, environment_python(""), directory, (), flags) as peer,
            server_factory(ours, *flags, "--allow-shared-memory", "--allow-file-overrides") as worker,
            gateway_factory([worker], "--allow-file-overrides") as gateway,
        ):
            gateway.wait_workers(1)
            yield Trio(
                Server("triton", str(peer.http_url).removeprefix("http://"), str(peer.grpc_address)),
                Server("worker", worker.http_url, worker.grpc_url),
                Server("gateway", gateway.http_url, gateway.grpc_url),
                hold,
            )
            hold.unlink(missing_ok=True)


@pytest.fixture(params=["worker", "gateway"])
def pair(request: pytest.FixtureRequest, trio: Trio) -> Pair:
    """Triton beside our worker, then beside our gateway; the group is the module's name."""
    group = request.module.__name__.removeprefix("test_alike_").replace("_", " ")
    return Pair(trio.triton, getattr(trio, request.param), group)


@pytest.fixture(autouse=True)
def _count(request: pytest.FixtureRequest, record_property: Any) -> Iterator[None]:
    before = sum(COMPARED.values())
    yield
    record_property("calls_compared_with_triton", sum(COMPARED.values()) - before)


class Hold:
    """``with held():`` the models that wait do so inside; ``held.running(server)`` returns when one does there."""

    def __init__(self, trio: Trio) -> None:
        self._trio = trio

    @contextmanager
    def __call__(self) -> Iterator[None]:
        for for_triton in (True, False):
            entered(self._trio.hold, for_triton).unlink(missing_ok=True)
        self._trio.hold.touch()
        try:
            yield
        finally:
            self._trio.hold.unlink(missing_ok=True)

    def running(self, server: Server) -> None:
        until(entered(self._trio.hold, server.name == "triton").exists)


@pytest.fixture
def held(trio: Trio) -> Iterator[Hold]:
    yield Hold(trio)
    trio.hold.unlink(missing_ok=True)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if COMPARED:
        counts = ", ".join(f"{group} {count}" for group, count in sorted(COMPARED.items()))
        terminalreporter.write_line(f"calls compared with real Triton: {counts}; {sum(COMPARED.values())} in all")
