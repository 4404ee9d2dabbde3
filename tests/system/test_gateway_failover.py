"""Workers that come, go, stop and die under load: no idempotent request fails."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway_load import Load
from stock_clients import KINDS, StockClient
from tritonclient.utils import InferenceServerException

from bench.ports import ports_in_a_row
from gateway_process import GatewayProcess, StartGateway
from sample_models import HELD, write_models
from server_process import ServerProcess, StartServer
from watching import metrics, release_until, total, wait_for

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("failover") / "models", "identity_int32", "slow", "repeat_async")


@pytest.fixture(scope="module")
def stays(repository: Path, server_factory: StartServer) -> Iterator[ServerProcess]:
    """The worker that is always there."""
    with server_factory(repository) as worker:
        yield worker


def healthy(gateway: GatewayProcess) -> dict[str, float]:
    """1 or 0 by worker."""
    return {
        sample.labels["worker"]: sample.value
        for family in metrics(gateway)
        for sample in family.samples
        if sample.name == "isochrone_gateway_worker_healthy"
    }


def executed(worker: ServerProcess, model: str = "identity_int32") -> int:
    with closing(StockClient("http", worker)) as client:
        return int(client.count(model)["executions"])


def test_a_worker_that_is_killed(
    stays: ServerProcess, repository: Path, server_factory: StartServer, gateway_factory: StartGateway
) -> None:
    with (
        server_factory(repository, check_exit=False) as dies,
        gateway_factory([stays, dies]) as gateway,
    ):
        gateway.wait_workers(2)
        with Load(gateway) as load:
            load.more(100)
            dies.process.kill()
            load.more(200)
            wait_for(lambda: healthy(gateway)[dies.http_url] == 0)
            load.more(50)
        assert not load.failures


def test_a_worker_that_drains(
    stays: ServerProcess, repository: Path, server_factory: StartServer, gateway_factory: StartGateway
) -> None:
    with (
        server_factory(repository) as leaves,
        gateway_factory([stays, leaves]) as gateway,
    ):
        gateway.wait_workers(2)
        kinds = ("http", "grpc", "stream", "stream")
        with Load(gateway, kinds) as load, closing(StockClient("http", gateway)) as client:
            answers: list[Any] = []

            def wait() -> None:
                sent = {"MILLISECONDS": np.array([[50]], np.int32)}
                answers.extend(client.infer("slow", sent).as_numpy("SLEPT") for _ in range(4))

            slow = threading.Thread(target=wait)
            slow.start()
            load.more(50)
            assert leaves.terminate() == 0
            load.more(100)
            slow.join(60)
        assert not load.failures
        assert [answer.item() for answer in answers] == [50] * 4


def test_a_worker_that_comes_back(
    stays: ServerProcess, repository: Path, server_factory: StartServer, gateway_factory: StartGateway
) -> None:
    """On the same port, as one that is restarted: it gets requests again."""
    with ExitStack() as stack:
        port = ports_in_a_row(1)
        first = stack.enter_context(server_factory(repository, "--http-port", str(port), check_exit=False))
        with gateway_factory([stays, first]) as gateway:
            gateway.wait_workers(2)
            with Load(gateway) as load:
                first.process.kill()
                first.process.wait()
                wait_for(lambda: healthy(gateway)[first.http_url] == 0)
                with server_factory(repository, "--http-port", str(port)) as second:
                    wait_for(lambda: healthy(gateway)[second.http_url] == 1)
                    wait_for(lambda: executed(second) > 20)
                    load.more(50)
                    # It goes first: the load must not notice.
                    assert second.terminate() == 0
                    load.more(50)
            assert not load.failures


def test_workers_named_by_a_file(
    stays: ServerProcess, repository: Path, server_factory: StartServer, gateway_factory: StartGateway, tmp_path: Path
) -> None:
    listed = tmp_path / "workers.txt"
    one = stays
    with server_factory(repository) as two:
        kinds = ("http", "grpc", "stream", "http")

        def name(text: str) -> None:
            """At once: a file that is half written names others."""
            listed.with_suffix(".new").write_text(text)
            listed.with_suffix(".new").rename(listed)

        name(f"# the fleet\n{one.http_url}\n")
        with gateway_factory([], "--upstream-file", str(listed)) as gateway, Load(gateway, kinds) as load:
            load.more(30)
            assert executed(two) == 0
            name(f"{one.http_url}\n{two.http_url}\n")
            wait_for(lambda: executed(two) > 20)
            name("not an upstream\n")
            load.more(30)
            assert len(healthy(gateway)) == 2, "a file that cannot be read changes nothing"
            name(f"{two.http_url}\n")
            wait_for(lambda: set(healthy(gateway)) == {two.http_url})
            load.more(10)
            before = executed(one)
            load.more(30)
            assert executed(one) == before
            assert not load.failures


def test_workers_behind_a_name(stays: ServerProcess, gateway_factory: StartGateway) -> None:
    with gateway_factory([], "--upstream-dns", f"localhost:{stays.http_port}") as gateway:
        wait_for(lambda: healthy(gateway).get(stays.http_url) == 1)
        with Load(gateway) as load:
            load.more(20)
        assert not load.failures


class TestStopped:
    """SIGSTOP: the kernel still accepts for it, and nothing ever comes back."""

    @pytest.fixture
    def stopped(
        self,
        stays: ServerProcess,
        repository: Path,
        server_factory: StartServer,
        gateway_factory: StartGateway,
        request: Any,
    ) -> Any:
        with ExitStack() as stack:
            worker = stack.enter_context(server_factory(repository))
            upstreams = [worker]
            if request.param:
                upstreams.append(stays)
            gateway = stack.enter_context(gateway_factory(upstreams, "--policy", "round_robin", "--probe-timeout", "2"))
            gateway.wait_workers(len(upstreams))
            try:
                yield gateway, worker
            finally:
                worker.process.send_signal(signal.SIGCONT)

    @pytest.mark.parametrize("stopped", [False], indirect=True, ids=["alone"])
    def test_a_deadline_is_kept(self, stopped: tuple[GatewayProcess, ServerProcess]) -> None:
        gateway, worker = stopped
        clients = [StockClient(kind, gateway) for kind in KINDS]
        for client in clients:
            client.infer("identity_int32", {"IN": np.array([1], np.int32)})
        worker.process.send_signal(signal.SIGSTOP)
        for client in clients:
            with pytest.raises(InferenceServerException) as caught:
                client.infer("identity_int32", {"IN": np.array([1], np.int32)}, timeout=50_000)
            # Or it has been found out by then.
            late = ("504", "StatusCode.DEADLINE_EXCEEDED")
            gone = ("503", "StatusCode.UNAVAILABLE")
            assert caught.value.status() in late + gone
        worker.process.send_signal(signal.SIGCONT)
        wait_for(lambda: healthy(gateway)[worker.http_url] == 1)
        for client in clients:
            answer = client.infer("identity_int32", {"IN": np.array([7], np.int32)}).as_numpy("OUT")
            assert answer.tolist() == [7]
            client.close()

    @pytest.mark.parametrize("stopped", [True], indirect=True, ids=["beside another"])
    def test_without_a_deadline_requests_move(self, stopped: tuple[GatewayProcess, ServerProcess]) -> None:
        gateway, worker = stopped
        with Load(gateway) as load:
            load.more(20)
            worker.process.send_signal(signal.SIGSTOP)
            load.more(100)
            wait_for(lambda: healthy(gateway)[worker.http_url] == 0)
            worker.process.send_signal(signal.SIGCONT)
            wait_for(lambda: healthy(gateway)[worker.http_url] == 1)
            load.more(100)
        assert not load.failures

    @pytest.mark.parametrize("stopped", [False], indirect=True, ids=["alone"])
    def test_a_stream_is_told(self, stopped: tuple[GatewayProcess, ServerProcess]) -> None:
        gateway, worker = stopped
        client = StockClient("grpc", gateway)
        answers: list[Any] = []
        told = threading.Event()

        def note(result: Any, error: Any) -> None:
            answers.append(error or result)
            if error is not None:
                told.set()

        client.raw.start_stream(note)
        sent = [
            client.input("IN", np.arange(1000, dtype=np.int32)),
            client.input("DELAY", np.array([5], np.int32)),
        ]
        client.raw.async_stream_infer("repeat_async", sent)
        wait_for(lambda: len(answers) > 2)
        worker.process.send_signal(signal.SIGSTOP)
        assert told.wait(60)
        assert answers[-1].status() == "StatusCode.UNAVAILABLE"
        assert worker.http_url in answers[-1].message()
        client.raw.stop_stream()
        client.close()


def test_the_gateway_drains(stays: ServerProcess, repository: Path, gateway_factory: StartGateway) -> None:
    """SIGTERM to the gateway: what it took is answered, then it ends."""
    with gateway_factory([stays]) as gateway:
        answers: list[Any] = []
        threads = []
        for kind in KINDS:

            def wait(kind: str = kind) -> None:
                with closing(StockClient(kind, gateway)) as client:
                    slept = client.infer("slow", {"MILLISECONDS": np.array([[HELD]], np.int32)}).as_numpy("SLEPT")
                    answers.append(slept.item())

            threads.append(threading.Thread(target=wait))
            threads[-1].start()
        wait_for(lambda: total(gateway, "isochrone_gateway_in_flight") == len(KINDS))
        gateway.process.send_signal(signal.SIGTERM)
        release_until(lambda: len(answers) == len(KINDS), repository)
        for thread in threads:
            thread.join()
        assert answers == [HELD] * len(KINDS)
        assert gateway.process.wait(60) == 0
