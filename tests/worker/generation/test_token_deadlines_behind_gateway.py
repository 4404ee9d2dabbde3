"""Two workers with toy models behind a real gateway: one of them cannot keep deadlines of tokens."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from worker_thread import ServedToys, served, write_toy

from gateway_process import GatewayProcess, StartGateway
from isochrone.clock import MICROSECOND, SECOND


@dataclass(frozen=True)
class Toys:
    gateway: GatewayProcess
    busy: ServedToys
    idle: ServedToys


@pytest.fixture
def toys(tmp_path_factory: pytest.TempPathFactory, gateway_factory: StartGateway) -> Iterator[Toys]:
    repositories = [tmp_path_factory.mktemp("generation") / "models" for _ in range(2)]
    for repository in repositories:
        write_toy(repository, "toy")
    with served(repositories[0]) as busy, served(repositories[1]) as idle:
        busy.expect_steps_of("toy", SECOND)
        idle.expect_steps_of("toy", MICROSECOND)
        upstreams = [f"127.0.0.1:{worker.ports['http']}" for worker in (busy, idle)]
        with gateway_factory(upstreams, "--policy", "round_robin") as gateway:
            gateway.wait_workers(2)
            yield Toys(gateway, busy, idle)


def post(gateway: GatewayProcess, path: str, **body: Any) -> tuple[int, str]:
    """Status and body."""
    url = f"http://{gateway.http_url}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def refusals(worker: ServedToys) -> int:
    return sum(worker.runner("toy")._refusals.values())


def test_what_a_worker_has_refused_goes_to_the_other(toys: Toys) -> None:
    """Also where the engine's thread has refused it, and also a stream, which is repeated only if nothing has run."""
    for path in ("generate", "generate_stream", "generate_stream"):
        # By the length of the text, the busy worker is in time: its engine's thread finds out that it is not.
        status, _ = post(
            toys.gateway,
            f"/v2/models/toy/{path}",
            text_input="x" * 100,
            max_tokens=3,
            sampling_parameters='{"time_to_first_token_ms": 4000}',
        )
        assert status == 200
    assert refusals(toys.busy) >= 1
    assert refusals(toys.idle) == 0
