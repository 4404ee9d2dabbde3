"""Control loops before a real worker, over a link that stalls, is cut and returns. Counts and states, no times."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import isochrone
from examples.robot_fleet.link import Link
from isochrone.client.control_loop.loop import Action, ControlLoop
from sample_models import write_models
from server_process import ServerProcess, StartServer

MODEL = "identity_fp32"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("control_loop") / "models", MODEL)


@pytest.fixture(scope="module")
def worker(server_factory: StartServer, repository: Path) -> Iterator[ServerProcess]:
    with server_factory(repository) as worker:
        yield worker


@pytest.fixture(params=["http", "grpc"])
def scheme(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def port_of(worker: ServerProcess, scheme: str) -> int:
    return worker.grpc_port if scheme == "grpc" else worker.http_port


class Agent:
    """Its observation is the number of the tick, which both models repeat."""

    def __init__(self, server: Any, hz: float = 20, **options: Any) -> None:
        self.actions: list[Action] = []
        self.late: list[tuple[int, Any, float]] = []
        period = 1000 / hz
        self.loop = isochrone.ControlLoop(
            server,
            MODEL,
            hz=hz,
            sense_ms=period * 0.1,
            infer_ms=period * 0.8,
            act_ms=period * 0.1,
            sense=lambda: {"IN": np.float32([self.loop.tick])},
            act=self.actions.append,
            local=lambda inputs: {"OUT": inputs["IN"]},
            fallback={"OUT": np.float32([-1])},
            on_late=lambda *given: self.late.append(given),
            **options,
        )

    async def run_until(self, is_so: Callable[[ControlLoop], bool], most: int = 1200) -> None:
        for _ in range(most // 5):
            await self.loop.run(5)
            if is_so(self.loop):
                return
        raise AssertionError(f"not so after {most} ticks: {self.loop.summary()}")

    def check(self) -> None:
        """Every tick that began acted once, on its own answer; every other one is counted."""
        summary = self.loop.summary()
        assert summary.ticks == len(self.actions) == self.loop.tick - summary.misses["skipped"]
        for action in self.actions:
            expected = -1 if action.source == "fallback" else action.tick
            assert np.asarray(action.outputs["OUT"]).tolist() == [expected]
        for tick, answer, age in self.late:
            assert answer["OUT"].tolist() == [tick]
            assert age > 0
        assert summary.late_answers == len(self.late)


def doubted(loop: ControlLoop) -> bool:
    return not loop.is_remote_trusted


def remote_again(agent: Agent) -> Callable[[ControlLoop], bool]:
    return lambda loop: loop.is_remote_trusted and agent.actions[-1].source == "remote"


@contextlib.asynccontextmanager
async def connected(worker: ServerProcess, scheme: str) -> AsyncIterator[tuple[Link, Agent]]:
    async with Link("127.0.0.1", port_of(worker, scheme)) as link:
        agent = Agent(f"{scheme}://127.0.0.1:{link.port}")
        async with agent.loop:
            yield link, agent
        agent.check()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_link_that_stalls_slows_down_is_cut_and_returns(worker: ServerProcess, scheme: str) -> None:
    async def main() -> None:
        async with connected(worker, scheme) as (link, agent):
            await agent.run_until(remote_again(agent))
            for change in (link.stall, lambda: link.slow(0.06, 0.01), link.cut):
                change()
                await agent.run_until(doubted)
                before = len(agent.actions)
                await agent.loop.run(10)
                assert {action.source for action in agent.actions[before:]} <= {"local", "fallback"}
                link.good()
                await agent.run_until(remote_again(agent))
            assert agent.loop.summary().doubts >= 3
            assert agent.loop.summary().late_answers > 0
            assert agent.loop.summary().remote_failures

    asyncio.run(main())


def test_a_worker_that_is_stopped_and_goes_on(worker: ServerProcess, scheme: str) -> None:
    async def main() -> None:
        async with connected(worker, scheme) as (_, agent):
            await agent.run_until(remote_again(agent))
            os.kill(worker.pid, signal.SIGSTOP)
            try:
                await agent.run_until(doubted)
            finally:
                os.kill(worker.pid, signal.SIGCONT)
            await agent.run_until(remote_again(agent))

    asyncio.run(main())


def test_a_worker_that_is_killed(server_factory: StartServer, repository: Path, scheme: str) -> None:
    async def main(worker: ServerProcess) -> None:
        agent = Agent(f"{scheme}://127.0.0.1:{port_of(worker, scheme)}")
        async with agent.loop:
            await agent.run_until(remote_again(agent))
            worker.process.kill()
            worker.process.wait()
            await agent.run_until(doubted)
            await agent.loop.run(10)
            assert {action.source for action in agent.actions[-10:]} <= {"local", "fallback"}
        agent.check()
        failures = set(agent.loop.summary().remote_failures)
        assert failures & {"unavailable", "connection_lost"}

    with server_factory(repository, check_exit=False) as worker:
        asyncio.run(main(worker))


def test_fifty_loops_share_a_client_and_an_event_loop(worker: ServerProcess, scheme: str) -> None:
    async def main() -> None:
        async with isochrone.AsyncClient(f"{scheme}://127.0.0.1:{port_of(worker, scheme)}", retries=0) as client:
            agents = [Agent(client, hz=4) for _ in range(50)]
            async with asyncio.TaskGroup() as group:
                for agent in agents:
                    group.create_task(agent.loop.run(8))
            for agent in agents:
                await agent.loop.close()
                agent.check()
            # The client is the caller's, and open.
            assert await client.is_ready(MODEL)
            assert sum(action.source == "remote" for agent in agents for action in agent.actions) > 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_what_the_server_rejects_counts_and_the_local_model_acts(worker: ServerProcess, scheme: str) -> None:
    async def main() -> None:
        agent = Agent(f"{scheme}://127.0.0.1:{port_of(worker, scheme)}", version="9")
        async with agent.loop:
            await agent.run_until(doubted)
        agent.check()
        assert "remote" not in {action.source for action in agent.actions}
        assert "not_found" in agent.loop.summary().remote_failures
        assert MODEL in agent.loop.summary().last_remote_error

    asyncio.run(main())


def test_cancellation_closes_connections_and_threads(worker: ServerProcess) -> None:
    async def main() -> None:
        async def run() -> None:
            async with Agent(f"127.0.0.1:{worker.http_port}", local_in_thread=True).loop as loop:
                await loop.run()

        tasks = [asyncio.create_task(run()) for _ in range(5)]
        await asyncio.sleep(0.3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        connections = psutil.Process().net_connections()
        assert [each for each in connections if each.raddr and each.raddr.port == worker.http_port] == []
        assert not [each for each in threading.enumerate() if each.name.startswith("isochrone-local-model")]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
