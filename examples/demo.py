"""``make demo``: a fleet under load while versions are rolled out and back, and a check of every answer.

``isochrone up`` runs the bundled fleet with a second gateway. Agents send requests to its pipeline while commands roll
version 2 out, back, and out again. Exits with 0 if no request failed and no answer violated the guarantees; leaves no
process or file behind.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import NoReturn

from agents import Agent, GrpcAgent, HttpAgent, Load
from fleet_process import ISOCHRONE, USUAL_CONTROL, FleetProcess
from processes import DemoFailed
from rich.console import Console
from rich.table import Table
from sightings import Phase, Sighting, gone_back, versions_of, violations

from isochrone.cli.requests.waterfall import percentile

REQUESTS_PER_SECOND = 300.0
#: Agents per transport, half of them at each gateway.
AGENTS = 4
#: Violations and failures to show.
_SHOWN = 5
TO_TWO = ("rollout", "start", "pipeline=2", "preprocess=2", "detector=2", "--cutover")

console = Console(highlight=False)


def say(text: str = "") -> None:
    console.print(text, soft_wrap=True, markup=False)


class Story:
    """The run, phase by phase, under continuous load."""

    def __init__(self, fleet: FleetProcess, load: Load, seconds: float) -> None:
        self.phases: list[Phase] = []
        #: By phase: how long each gateway held requests, in ms.
        self.pauses: dict[str, dict[str, float]] = {}
        self._fleet = fleet
        self._load = load
        self._seconds = seconds

    async def tell(self) -> None:
        self._load.start()
        try:
            await self._serve("before", "1")
            await self._change("strict, 1 → 2", "strict", *TO_TWO, "strict")
            await self._serve("after it", "2")
            await self._change("rollback, 2 → 1", "strict", "rollout", "rollback", "pipeline")
            await self._serve("after it", "1")
            await self._change("fast, 1 → 2", "fast", *TO_TWO, "fast")
            await self._serve("after it", "2")
        finally:
            await self._load.stop()

    async def _serve(self, name: str, version: str) -> None:
        say(f"\n{self._seconds:g} s of load on version {version}")
        self._enter(Phase(name, monotonic(), frozenset((version,))))
        await asyncio.sleep(self._seconds)

    async def _change(self, name: str, cutover: str, *words: str) -> None:
        before = await asyncio.to_thread(self._fleet.held_ms)
        self._enter(Phase(name, monotonic(), frozenset(("1", "2")), cutover))
        await self._isochrone(words)
        after = await asyncio.to_thread(self._fleet.held_ms)
        if cutover == "strict":
            self.pauses[name] = {gateway: after[gateway] - held for gateway, held in before.items()}

    def _enter(self, phase: Phase) -> None:
        """Begin a phase and end the one before: every request belongs to one."""
        if self.phases:
            self.phases[-1] = replace(self.phases[-1], end=phase.begin)
        self.phases.append(phase)

    async def _isochrone(self, words: Sequence[str]) -> None:
        """Run a command and show its lines as they come."""
        port = self._fleet.control_port
        words = (*words, *(("--api", f"http://127.0.0.1:{port}") if port != USUAL_CONTROL else ()))
        say(f"\n$ isochrone {shlex.join(words)}")
        process = await asyncio.create_subprocess_exec(
            *ISOCHRONE,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                say(f"  {line.decode().rstrip()}")
            if await process.wait() != 0:
                raise DemoFailed(f"isochrone {words[0]} ended with code {process.returncode}, expected 0")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def summary(story: Story, seen: Sequence[Sighting]) -> Table:
    title = f"{len(seen):,} requests, {REQUESTS_PER_SECOND:g} a second, HTTP and gRPC, two gateways, three workers"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    for index, column in enumerate(("phase", "requests", "failed", "p50 ms", "p99 ms", "worst ms", "versions seen")):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for phase in story.phases:
        sent = phase.sent(seen)
        times = sorted(each.milliseconds for each in sent if each.versions)
        figures = [f"{percentile(times, share):.1f}" for share in (0.5, 0.99, 1.0)] if times else ["–"] * 3
        failed = sum(not each.versions for each in sent)
        table.add_row(
            phase.name, f"{len(sent):,}", str(failed), *figures, ", ".join(sorted(versions_of(sent))) or "none"
        )
    return table


def judge(story: Story, seen: Sequence[Sighting]) -> None:
    """Report the results; raise if they violate a guarantee."""
    say()
    console.print(summary(story, seen))
    say("\nA change lasts from its command's start to its end. Agents, fleet and commands share this machine.")
    for name, pauses in story.pauses.items():
        said = ", ".join(f"{held:.1f} ms at {gateway}" for gateway, held in sorted(pauses.items()))
        say(f"{name}: requests waited {said}")
    last = story.phases[-2:]
    late = gone_back([each for phase in last for each in phase.sent(seen)], "1", "2")
    say(f"{last[0].name}: no request waited; {len(late)} requests got version 1 after another had got version 2")
    failures = [f"{each.agent}: {each.failure}" for each in seen if not each.versions]
    found = violations(seen, story.phases)
    say(f"failed requests: {len(failures)}")
    say(f"violations: {len(found)} (mixed stages; the old version after the new one under strict)")
    for problem in (*failures[:_SHOWN], *found[:_SHOWN]):
        say(f"  {problem}")
    if failures or found:
        raise DemoFailed(f"{len(failures)} requests failed and {len(found)} violated a guarantee")


async def run_story(fleet: FleetProcess, seconds: float) -> None:
    gateways = [gateway["address"] for gateway in fleet.status()["gateways"]]
    agents: list[Agent] = []
    for index in range(AGENTS):
        address = gateways[index % len(gateways)]
        agents += [HttpAgent(f"http-{index + 1}", address), GrpcAgent(f"grpc-{index + 1}", address)]
    load = Load(agents, REQUESTS_PER_SECOND)
    story = Story(fleet, load, seconds)
    await story.tell()
    judge(story, load.seen)


def _ended(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description="A fleet under load while versions change; checks every answer.")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds between two changes (default: %(default)g)")
    parser.add_argument("--free-ports", action="store_true", help="do not use the default ports even if they are free")
    arguments = parser.parse_args()
    # A shell that starts the demo in the background ignores Ctrl-C; it must still end the demo.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended)
    folder = Path(tempfile.mkdtemp(prefix="isochrone-demo-"))
    try:
        with FleetProcess(folder, say, free_ports=arguments.free_ports) as fleet:
            fleet.wait_until_up()
            asyncio.run(run_story(fleet, arguments.seconds))
        say("\nAll processes have stopped. To do the same by hand: isochrone up, then the commands above.")
    except (DemoFailed, OSError) as error:
        sys.exit(f"demo: {error}\ndemo: logs are in {folder}")
    except KeyboardInterrupt:
        say("\nstopped")
    except SystemExit:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
