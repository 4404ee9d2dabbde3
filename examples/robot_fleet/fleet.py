"""A fleet of cart-poles over a link that degrades, dies and returns: ``python examples/robot_fleet/fleet.py``.

Each robot has a control loop of 50 Hz (``isochrone.ControlLoop``). The good controller runs on a worker, behind a link
(``link.py``); a coarse one runs in the robot. The scenario runs twice: without the local controller, when a robot
without an answer holds its last force for five ticks and then lets go, and with it. Prints what the fleet did in each
phase. Robots, pushes and phases are the same in every run; the times of sockets and of the machine are not. Leaves
nothing behind.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cart_pole import CartPole, local_force
from controller_model import MODEL, build
from rich.console import Console
from rich.table import Table

import isochrone

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # the examples share how they start processes
from processes import DemoFailed, Servers  # noqa: E402

HZ = 50
#: Phase and what the link does, as ``link.py`` reads it.
PHASES = (("good", "good"), ("degraded", "slow 12 8"), ("dead", "stall"), ("returned", "good"))


class Robot:
    """A cart-pole and its loop."""

    def __init__(self, client: isochrone.AsyncClient, seed: int, *, has_local: bool) -> None:
        self.plant = CartPole(seed, time.monotonic())
        self.loop = isochrone.ControlLoop(
            client,
            MODEL,
            hz=HZ,
            sense_ms=2,
            infer_ms=15,
            act_ms=3,
            sense=self._sense,
            act=self._act,
            local=self._local if has_local else None,
            fallback={"force": np.zeros((1, 1), np.float32)},
            hold_last_ticks=5,
            headers={"x-agent-id": f"robot-{seed}"},
        )

    def _sense(self) -> Mapping[str, Any]:
        self.plant.advance(time.monotonic())
        return {"state": self.plant.state.astype(np.float32).reshape(1, 4)}

    def _local(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"force": np.float32([[local_force(inputs["state"][0])]])}

    def _act(self, action: Any) -> None:
        self.plant.push(float(action.outputs["force"][0, 0]), time.monotonic())


@dataclass
class Figures:
    """Of all robots in one phase."""

    phase: str
    robots: int
    falls: int = 0
    squares: float = 0.0
    steps: int = 0
    remote: int = 0
    local: int = 0
    none: int = 0
    misses: int = 0
    ticks: int = 0


async def run_phase(robots: list[Robot], phase: str, ticks: int) -> Figures:
    found = Figures(phase, len(robots))
    before = [robot.loop.summary() for robot in robots]

    async def run(number: int, robot: Robot) -> None:
        # Spread over the period: real robots do not start at the same instant.
        await asyncio.sleep(number / len(robots) / HZ)
        await robot.loop.run(ticks)

    async with asyncio.TaskGroup() as group:
        for number, robot in enumerate(robots):
            group.create_task(run(number, robot))
    for robot, old in zip(robots, before, strict=True):
        new = robot.loop.summary()
        falls, squares, steps = robot.plant.take_quality()
        found.falls += falls
        found.squares += squares
        found.steps += steps
        found.ticks += ticks
        found.remote += new.sources["remote"] - old.sources["remote"]
        found.local += new.sources["local"] - old.sources["local"]
        found.none += sum(new.sources[source] - old.sources[source] for source in ("held", "fallback"))
        found.misses += new.deadline_misses - old.deadline_misses
    return found


@contextmanager
def link_to(address: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own: a busy fleet must not slow the link down."""
    command = [sys.executable, str(HERE / "link.py"), address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.communicate()


async def run_scenario(address: str, robots: int, seconds: float, *, has_local: bool) -> list[Figures]:
    found = []
    with link_to(address) as link:
        assert link.stdin is not None
        assert link.stdout is not None
        port = int(link.stdout.readline())
        async with isochrone.AsyncClient(f"127.0.0.1:{port}", retries=0) as client:
            await client.wait_ready(30, MODEL)
            fleet = [Robot(client, seed, has_local=has_local) for seed in range(robots)]
            for phase, change in PHASES:
                link.stdin.write(f"{change}\n")
                link.stdin.flush()
                found.append(await run_phase(fleet, phase, round(seconds * HZ)))
            for robot in fleet:
                await robot.loop.close()
    return found


def show(title: str, phases: list[Figures]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("link", "fallen poles", "mean squared angle", "remote", "local", "no answer", "deadline misses"):
        table.add_column(column, justify="left" if column == "link" else "right")
    for each in phases:
        shares = (each.remote, each.local, each.none, each.misses)
        table.add_row(
            each.phase,
            str(each.falls),
            f"{each.squares / max(1, each.steps):.5f}",
            *(f"{share / each.ticks:.1%}" for share in shares),
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each phase")
    given = parser.parse_args()
    if given.robots < 1 or given.seconds < 1 / HZ:
        parser.error(f"expected at least one robot and {1 / HZ:g} seconds")
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="isochrone-robots-") as folder:
        build(Path(folder) / "models")
        try:
            with Servers(Path(folder)) as servers:
                worker = servers.worker("worker", Path(folder) / "models").wait_until_ready()
                for has_local, title in ((False, "without a local controller"), (True, "with a local controller")):
                    phases = asyncio.run(run_scenario(worker.address, given.robots, given.seconds, has_local=has_local))
                    console.print(show(f"{given.robots} robots, {title}", phases), "")
        except DemoFailed as error:
            sys.exit(f"fleet: {error}")


if __name__ == "__main__":
    main()
