"""A model in two stages on two workers: the first sends to the second, and no client stands between them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import isochrone
from gateway_process import StartGateway
from isochrone.errors import DeadlineExceeded, IsochroneError, Unavailable
from isochrone.optimize.partitioning.cuts import all_cuts
from isochrone.optimize.partitioning.facts import facts_of
from isochrone.optimize.partitioning.graph import graph_of
from isochrone.optimize.partitioning.stages import divided
from server_process import ServerProcess, StartServer
from two_stage_net import residual_net

FEATURES = 'name: "b1" data_type: TYPE_FP32 dims: [ 8, 8, 8 ]'
IMAGE = 'input { name: "image" data_type: TYPE_FP32 dims: [ 3, 16, 16 ] }\n'
SCORES = 'output { name: "scores" data_type: TYPE_FP32 dims: [ 10 ] }\n'


def write(directory: Path, config: str, model: Any = None) -> None:
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(f'name: "{directory.name}"\nmax_batch_size: 8\n{config}')
    if model is not None:
        (directory / "1" / "model.onnx").write_bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def stages() -> Any:
    model = residual_net()
    graph = graph_of(model)
    (cut,) = [cut for cut in all_cuts(graph) if cut.crossing == ("b1",)]
    facts = facts_of(model, ["b1"], {"image": np.zeros((1, 3, 16, 16), np.float32)}, False)
    return divided(model, graph, cut, facts)


@pytest.fixture(scope="module")
def core_repository(tmp_path_factory: pytest.TempPathFactory, stages: Any) -> Path:
    repository = tmp_path_factory.mktemp("core")
    write(repository / "net_2", f'backend: "onnxruntime"\ninput {{ {FEATURES} }}\n{SCORES}', stages.second)
    return repository


@pytest.fixture
def edge_repository(tmp_path: Path, stages: Any) -> Callable[..., Path]:
    def make(*endpoints: str, version: str = "") -> Path:
        repository = tmp_path / "edge"
        write(repository / "net_1", f'backend: "onnxruntime"\n{IMAGE}output {{ {FEATURES} }}\n', stages.first)
        text = f'parameters {{ key: "endpoints" value {{ string_value: "{",".join(endpoints)}" }} }}\n'
        text += f'parameters {{ key: "remote_version" value {{ string_value: "{version}" }} }}\n'
        write(repository / "net_2", f'backend: "remote"\ninput {{ {FEATURES} }}\n{SCORES}{text}')
        write(
            repository / "net",
            f'platform: "ensemble"\n{IMAGE}{SCORES}ensemble_scheduling {{\n'
            'step { model_name: "net_1" model_version: -1 input_map { key: "image" value: "image" }\n'
            '  output_map { key: "b1" value: "features" } }\n'
            'step { model_name: "net_2" model_version: -1 input_map { key: "b1" value: "features" }\n'
            '  output_map { key: "scores" value: "scores" } } }\n',
        )
        return repository

    return make


@pytest.fixture
def cores(core_repository: Path, server_factory: StartServer) -> Iterator[list[ServerProcess]]:
    with ExitStack() as stack:
        yield [stack.enter_context(server_factory(core_repository, check_exit=False)) for _ in range(2)]


def images(rows: int) -> Any:
    return np.random.default_rng(rows).standard_normal((rows, 3, 16, 16)).astype(np.float32)


def expected(rows: int) -> Any:
    session = onnxruntime.InferenceSession(residual_net().SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"image": images(rows)})[0]


def ask(client: isochrone.Client, rows: int = 1, **more: Any) -> Any:
    return client.infer("net", {"image": images(rows)}, **more)["scores"]


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_both_stages_compute_what_the_whole_model_computes(
    cores: list[ServerProcess], edge_repository: Callable[..., Path], server_factory: StartServer, scheme: str
) -> None:
    port = cores[0].http_port if scheme == "http" else cores[0].grpc_port
    with (
        server_factory(edge_repository(f"{scheme}://127.0.0.1:{port}")) as edge,
        isochrone.Client(edge.http_url) as client,
    ):
        for rows in (1, 3, 8):
            np.testing.assert_allclose(ask(client, rows), expected(rows), rtol=1e-4, atol=1e-5)


def test_a_second_stage_that_is_killed_costs_no_request(
    cores: list[ServerProcess], edge_repository: Callable[..., Path], server_factory: StartServer
) -> None:
    addresses = [core.http_url for core in cores]
    with server_factory(edge_repository(*addresses)) as edge, isochrone.Client(edge.http_url) as client:
        wanted = expected(1)
        under_way = threading.Semaphore(0)

        def keep_asking(_: int) -> int:
            for _ in range(60):
                np.testing.assert_allclose(ask(client), wanted, rtol=1e-4, atol=1e-5)
                under_way.release()
            return 60

        with ThreadPoolExecutor(4) as callers:
            asked = callers.map(keep_asking, range(4))
            for _ in range(20):
                assert under_way.acquire(timeout=60)
            cores[0].process.send_signal(signal.SIGKILL)
            assert sum(asked) == 240


def test_a_second_stage_that_stops_answering_ends_at_the_deadline(
    cores: list[ServerProcess], edge_repository: Callable[..., Path], server_factory: StartServer
) -> None:
    with server_factory(edge_repository(cores[0].http_url)) as edge, isochrone.Client(edge.http_url) as client:
        ask(client)
        cores[0].process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(DeadlineExceeded):
                ask(client, deadline_ms=300)
        finally:
            cores[0].process.send_signal(signal.SIGCONT)
        np.testing.assert_allclose(ask(client), expected(1), rtol=1e-4, atol=1e-5)


def test_of_two_second_stages_the_one_that_stops_answering_is_left_out(
    cores: list[ServerProcess], edge_repository: Callable[..., Path], server_factory: StartServer
) -> None:
    addresses = [core.http_url for core in cores]
    with server_factory(edge_repository(*addresses)) as edge, isochrone.Client(edge.http_url, retries=0) as client:
        ask(client)
        ask(client)
        cores[0].process.send_signal(signal.SIGSTOP)
        late = 0
        try:
            for _ in range(40):
                try:
                    ask(client, deadline_ms=2000)
                except DeadlineExceeded:
                    late += 1
        finally:
            cores[0].process.send_signal(signal.SIGCONT)
        # Without leaving it out, every second request is late.
        assert 1 <= late <= 10


def test_an_endpoint_may_be_a_gateway_and_another_may_be_missing(
    core_repository: Path,
    edge_repository: Callable[..., Path],
    server_factory: StartServer,
    gateway_factory: StartGateway,
) -> None:
    with (
        server_factory(core_repository) as core,
        gateway_factory([core]) as gateway,
        server_factory(edge_repository("127.0.0.1:1", gateway.http_url)) as edge,
        isochrone.Client(edge.http_url) as client,
    ):
        np.testing.assert_allclose(ask(client), expected(1), rtol=1e-4, atol=1e-5)


def test_a_version_that_the_second_stage_does_not_have_is_not_replaced_by_another(
    cores: list[ServerProcess], edge_repository: Callable[..., Path], server_factory: StartServer
) -> None:
    repository = edge_repository(cores[0].http_url, version="2")
    with (
        server_factory(repository) as edge,
        isochrone.Client(edge.http_url, retries=0) as client,
        pytest.raises(IsochroneError, match=r"net_2', computed by http://127.0.0.1:\d+: .*version"),
    ):
        ask(client)


def test_without_any_second_stage_the_error_names_where_it_should_be(
    edge_repository: Callable[..., Path], server_factory: StartServer
) -> None:
    with (
        server_factory(edge_repository("127.0.0.1:1")) as edge,
        isochrone.Client(edge.http_url, retries=0) as client,
        pytest.raises(Unavailable, match=r"in ensemble 'net'.*computed by http://127.0.0.1:1"),
    ):
        ask(client)
