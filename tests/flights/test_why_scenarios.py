"""Ten requests that miss their deadline, each for a cause that the test forces on real processes; ``why`` names it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from flight_fleets import is_over, page, send, until, why, write_sleeper

from bench.ports import ports_in_a_row
from emulated_link import EmulatedLink
from gateway_process import GatewayProcess, StartGateway
from isochrone.control.flights.asking import Why
from server_process import ServerProcess, StartServer

#: ms of a request that teaches everybody how long the model takes.
USUAL = 5.0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sleeper(tmp_path_factory.mktemp("flights") / "models")


@pytest.fixture(scope="module")
def worker(repository: Path, server_factory: StartServer) -> Iterator[ServerProcess]:
    with server_factory(repository) as server:
        yield server


def explained(request_id: str, gateway: GatewayProcess, *workers: ServerProcess) -> Why:
    found = asyncio.run(why(request_id, gateway, *workers))
    assert found is not None
    assert sum(part.ns for part in found.explanation.parts) == found.explanation.total_ns
    return found


def warm(server: ServerProcess | GatewayProcess, times: int = 16, ms: float = USUAL, version: str = "") -> None:
    for _ in range(times):
        assert send(server, ms, version=version) == 200


def teach(server: ServerProcess, ms: float) -> None:
    """Until the server expects that a run takes so long: its estimate trusts no few runs that are unlike the others."""
    for number in range(100):
        name = f"lesson-{number}"
        assert send(server, ms, name) == 200
        until(partial(is_over, server, name))
        if page(server, name)["flights"][0]["alone_ns"] > 0.9 * ms * 1_000_000:
            return
    raise AssertionError(f"{server.http_url} does not learn that a run takes {ms:g} ms")


def ruled(tmp_path: Path, text: str) -> tuple[str, str]:
    rules = tmp_path / "rules.yaml"
    rules.write_text(text)
    return "--rules", str(rules)


def test_a_slow_run(worker: ServerProcess, gateway_factory: StartGateway) -> None:
    """The short one: also found by x-request-id, and listed among the misses."""
    with gateway_factory([worker]) as gateway:
        warm(gateway)
        assert send(gateway, 250, "slow-1", deadline_ms=80, headers={"x-request-id": "edge-77"}) == 504
        until(lambda: is_over(worker, "slow-1"))
        for name in ("slow-1", "edge-77"):
            found = explained(name, gateway, worker)
            assert found.cause == "slow worker", found.lines
            assert found.explanation.is_miss
        assert asyncio.run(why("unknown", gateway, worker)) is None


@pytest.mark.long
def test_a_queue(worker: ServerProcess, gateway_factory: StartGateway) -> None:
    with gateway_factory([worker]) as gateway, ThreadPoolExecutor(1) as pool:
        warm(worker)
        ahead = pool.submit(send, worker, 600, "ahead")
        until(lambda: bool(page(worker, "ahead")["flights"]))
        assert send(gateway, USUAL, "queued", deadline_ms=150) == 504
        assert ahead.result() == 200
        until(lambda: is_over(worker, "queued"))
        found = explained("queued", gateway, worker)
        assert found.cause == "queue", found.lines


@pytest.mark.long
def test_a_retry(repository: Path, server_factory: StartServer, gateway_factory: StartGateway) -> None:
    with (
        server_factory(repository, check_exit=False) as one,
        server_factory(repository, check_exit=False) as two,
        gateway_factory([one, two], check_exit=False) as gateway,
        ThreadPoolExecutor(2) as pool,
    ):
        # Both know that a run takes so long: only the time of the lost attempt is too much.
        list(pool.map(lambda each: teach(each, 400), (one, two)))
        sent = pool.submit(send, gateway, 400, "lost-once", deadline_ms=550)
        until(lambda: any(page(each, "lost-once")["flights"] for each in (one, two)))
        first = one if page(one, "lost-once")["flights"] else two
        time.sleep(0.25)
        first.process.kill()
        assert sent.result() == 504
        other = two if first is one else one
        found = explained("lost-once", gateway, other)
        assert found.cause == "retry", found.lines


@pytest.mark.long
def test_a_cold_model(gateway_factory: StartGateway, tmp_path: Path) -> None:
    room = "models: {sleeper: {waiting_room: {max_requests: 6, max_wait_ms: 60000}}}\n"
    with gateway_factory([f"127.0.0.1:{ports_in_a_row(1)}"], *ruled(tmp_path, room)) as gateway:
        assert send(gateway, 1, "cold", deadline_ms=80) in (503, 504)
        found = explained("cold", gateway)
        assert found.cause == "cold model", found.lines


@pytest.mark.long
def test_a_batch_mate(server_factory: StartServer, gateway_factory: StartGateway, tmp_path: Path) -> None:
    batching = "dynamic_batching { max_queue_delay_microseconds: 200000 }"
    models = write_sleeper(tmp_path / "models", batching=batching)
    with (
        server_factory(models) as worker,
        gateway_factory([worker]) as gateway,
        ThreadPoolExecutor(2) as pool,
    ):
        for _ in range(8):
            assert send(gateway, USUAL, batched=True) == 200
        mate = pool.submit(send, gateway, 500, "mate", batched=True)
        victim = pool.submit(send, gateway, 1, "victim", deadline_ms=450, batched=True)
        assert (mate.result(), victim.result()) == (200, 504)
        until(lambda: is_over(worker, "victim"))
        found = explained("victim", gateway, worker)
        assert found.cause == "batch-mate", found.lines
        assert any("mate" in line for line in found.lines)


@pytest.mark.long
def test_the_network(worker: ServerProcess, gateway_factory: StartGateway) -> None:
    with EmulatedLink(worker.http_port) as link, gateway_factory([link.address]) as gateway:
        gateway.wait_workers(1)
        warm(gateway)
        link.delay = 0.15
        assert send(gateway, USUAL, "far", deadline_ms=200) == 504
        until(lambda: is_over(worker, "far"))
        found = explained("far", gateway, worker)
        assert found.cause == "network", found.lines


@pytest.mark.long
def test_a_quota(worker: ServerProcess, gateway_factory: StartGateway, tmp_path: Path) -> None:
    quota = "models: {sleeper: {quota: {rate: 0.001, burst: 1, header: x-tenant}}}\n"
    with gateway_factory([worker], *ruled(tmp_path, quota)) as gateway:
        assert send(gateway, USUAL, headers={"x-tenant": "a"}) == 200
        assert send(gateway, USUAL, "greedy", deadline_ms=1000, headers={"x-tenant": "a"}) == 429
        assert explained("greedy", gateway, worker).cause == "quota"


@pytest.mark.long
def test_a_breaker(worker: ServerProcess, gateway_factory: StartGateway, tmp_path: Path) -> None:
    breaker = "models: {sleeper: {breaker: {max_in_flight: 1}}}\n"
    with gateway_factory([worker], *ruled(tmp_path, breaker)) as gateway, ThreadPoolExecutor(1) as pool:
        holding = pool.submit(send, gateway, 1000, "holding")
        until(lambda: bool(page(worker, "holding")["flights"]))
        assert send(gateway, USUAL, "refused", deadline_ms=5000) == 503
        assert explained("refused", gateway, worker).cause == "breaker"
        assert holding.result() == 200


@pytest.mark.long
def test_a_canary(server_factory: StartServer, gateway_factory: StartGateway, tmp_path: Path) -> None:
    models = write_sleeper(tmp_path / "models", versions=(1.0, 60.0))
    canary = "models: {sleeper: {canary: {version: 2, stable: 1, weight: 0.5, header: x-canary}}}\n"
    with server_factory(models) as worker, gateway_factory([worker], *ruled(tmp_path, canary)) as gateway:
        for _ in range(8):
            assert send(gateway, USUAL, headers={"x-canary": "never"}) == 200
        assert send(gateway, USUAL, "tried", deadline_ms=100, headers={"x-canary": "always"}) == 504
        until(lambda: is_over(worker, "tried"))
        found = explained("tried", gateway, worker)
        assert found.cause == "canary", found.lines


@pytest.mark.long
def test_a_pause_of_the_garbage_collector(
    repository: Path, server_factory: StartServer, gateway_factory: StartGateway
) -> None:
    with server_factory(repository) as worker, gateway_factory([worker]) as gateway:
        warm(gateway, 4)
        assert send(gateway, -1) == 200
        warm(gateway, 24)
        send(gateway, -2, "paused", deadline_ms=25)
        until(lambda: is_over(worker, "paused"))
        found = explained("paused", gateway, worker)
        assert found.explanation.is_miss, found.lines
        assert found.cause == "GC pause", found.lines
