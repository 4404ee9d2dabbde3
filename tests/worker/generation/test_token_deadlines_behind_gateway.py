"""Two workers with toy models behind a real gateway: one of them cannot keep deadlines of tokens."""

from __future__ import annotations

import json
import queue
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from worker_thread import ServedToys, served, write_toy

from gateway_process import GatewayProcess, StartGateway
from isochrone.clock import MICROSECOND, SECOND

SECONDS = 60


@dataclass(frozen=True)
class Toys:
    gateway: GatewayProcess
    busy: ServedToys
    idle: ServedToys


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, gateway_factory: StartGateway) -> Iterator[Toys]:
    repositories = [tmp_path_factory.mktemp("generation") / "models" for _ in range(2)]
    for repository in repositories:
        write_toy(repository, "toy")
    with served(repositories[0]) as busy, served(repositories[1]) as idle:
        upstreams = [f"127.0.0.1:{worker.ports['http']}" for worker in (busy, idle)]
        with gateway_factory(upstreams, "--policy", "round_robin") as gateway:
            gateway.wait_workers(2)
            yield Toys(gateway, busy, idle)


@pytest.fixture
def toys(running: Toys) -> Toys:
    running.busy.expect_steps_of("toy", SECOND)
    running.idle.expect_steps_of("toy", MICROSECOND)
    for worker in (running.busy, running.idle):
        worker.runner("toy").figures._refusals.by_code.clear()
    return running


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


class Streams:
    """Requests over ``ModelStreamInfer``. Each has a call of its own, which is open before it is needed: what the
    gateway knows of its workers is old before a new connection is made on a busy machine."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._client = triton.InferenceServerClient(f"127.0.0.1:{gateway.grpc_port}")
        assert self._client.is_server_live()
        self._prompt = triton.InferInput("text_input", [1], "BYTES")
        self._prompt.set_data_from_numpy(np.array([b"x"], object))

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def open(self) -> None:
        answers: queue.Queue[Any] = queue.Queue()
        self._client.start_stream(lambda result, error: answers.put((result, error)))
        self._answers = answers

    def ask(self, **parameters: Any) -> tuple[int, str]:
        """200, or 504 and the error."""
        self._client.async_stream_infer("toy", [self._prompt], parameters=parameters)
        _, error = self._answers.get(timeout=SECONDS)
        self._client.stop_stream()
        return (200, "") if error is None else (504, str(error))


def refusals(worker: ServedToys) -> int:
    return sum(worker.runner("toy").figures._refusals.by_code.values())


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


def moved(gateway: GatewayProcess) -> float:
    """Requests that went to another worker than the policy's choice."""
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.metrics_port}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    name = "isochrone_gateway_admission_moved_total{"
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def learn(toys: Toys) -> None:
    """Both workers answer, and so tell the gateway how long their tokens take. It goes by that for a tenth of a second:
    on a busy machine, the next request may come too late for it."""
    for _ in range(2):
        assert post(toys.gateway, "/v2/models/toy/generate", text_input="x", max_tokens=2)[0] == 200


@pytest.mark.parametrize("asked", [{"time_to_first_token_ms": 500}, {"inter_token_ms": 500}])
@pytest.mark.parametrize(
    "path", ["/v2/models/toy/generate", "/v2/models/toy/generate_stream", "/v1/completions", "ModelStreamInfer"]
)
def test_requests_go_to_the_worker_that_keeps_their_deadlines(toys: Toys, path: str, asked: dict[str, int]) -> None:
    body: dict[str, Any] = {"max_tokens": 2, **asked}
    if path != "ModelStreamInfer":
        body |= {"text_input": "x"} if path.startswith("/v2") else {"model": "toy", "prompt": "x"}
    ends = time.monotonic() + SECONDS
    before, is_moved = moved(toys.gateway), False
    with Streams(toys.gateway) as streams:
        while not is_moved:
            assert time.monotonic() < ends
            is_stream = not path.startswith("/")
            if is_stream:
                streams.open()
            learn(toys)
            refused = refusals(toys.busy)
            status, _ = streams.ask(**body) if is_stream else post(toys.gateway, path, **body)
            is_moved = moved(toys.gateway) > before
            # It did not try the busy worker first.
            assert not is_moved or (status, refusals(toys.busy)) == (200, refused)
    assert refusals(toys.idle) == 0


@pytest.mark.parametrize("transport", ["HTTP", "gRPC"])
def test_a_deadline_that_no_worker_can_keep(toys: Toys, transport: str) -> None:
    toys.idle.expect_steps_of("toy", SECOND)
    text, ends = "", time.monotonic() + SECONDS
    with Streams(toys.gateway) as streams:
        while "no worker can meet the deadline between tokens" not in text:
            assert time.monotonic() < ends
            if transport == "gRPC":
                streams.open()
            learn(toys)
            if transport == "HTTP":
                status, text = post(toys.gateway, "/v1/completions", model="toy", prompt="x", inter_token_ms=500)
            else:
                status, text = streams.ask(inter_token_ms=500)
            assert status == 504
