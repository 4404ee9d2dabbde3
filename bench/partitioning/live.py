"""A divided model while its link changes: requests at a constant rate, the present division, and what the caller sees.

The edge worker measures the link and moves by itself; nothing but the link is touched during the run.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

import isochrone
from bench.links.network import EmulatedNetwork
from bench.links.settings import LinkSettings
from isochrone.errors import IsochroneError

MODEL = "live"
GOOD, BAD = LinkSettings(0.001, 300e6), LinkSettings(0.030, 2e6)
#: When the link changes, changes back, and when the run ends.
CHANGES, BACK, END = 5.0, 15.0, 35.0
_LOOK_SECONDS = 0.05
_DEADLINE_MS = 10_000.0


@dataclass
class LiveRun:
    """Times in seconds since the begin of the run."""

    #: Of each request: when it began, and how long it took.
    answered: list[tuple[float, float]] = field(default_factory=list)
    failed: list[tuple[float, str]] = field(default_factory=list)
    #: The present division, from this time on.
    divisions: list[tuple[float, str]] = field(default_factory=list)

    def median_ms(self, begin: float, end: float) -> float:
        found = [seconds for began, seconds in self.answered if begin <= began < end]
        return statistics.median(found) * 1e3 if found else float("nan")

    def moved_after(self, change: float) -> float | None:
        """Seconds until the first move after a change; None: none before the next one."""
        until = BACK if change < BACK else END
        moves = [at for at, _ in self.divisions[1:] if change <= at < until]
        return moves[0] - change if moves else None

    def lines(self) -> list[str]:
        found = [f"live: {len(self.answered)} requests answered, {len(self.failed)} failed"]
        found += [f"  failed at {at:.1f} s: {why}" for at, why in self.failed[:5]]
        found.append("  divisions: " + ", ".join(f"{name} from {at:.1f} s" for at, name in self.divisions))
        for title, change, until in (("bad", CHANGES, BACK), ("good again", BACK, END)):
            moved = self.moved_after(change)
            settled = until if moved is None else change + moved
            said = "no move" if moved is None else f"moved after {moved:.1f} s"
            spans = ((change - 3, change), (change, settled), (settled, until))
            before, waiting, after = (self.median_ms(*span) for span in spans)
            found.append(
                f"  link {title} at {change:g} s: {said}; median {before:.1f} ms before, {waiting:.1f} ms until the "
                f"move, {after:.1f} ms after it"
            )
        return found

    def record(self) -> dict[str, Any]:
        return {
            "answered": len(self.answered),
            "failed": [list(each) for each in self.failed],
            "divisions": [list(each) for each in self.divisions],
            "requests_ms": [[round(began, 3), round(seconds * 1e3, 2)] for began, seconds in self.answered],
        }


def present_division(page: str) -> str:
    # The rest of the page is left out: the parser takes half a second for it, in which this process sends nothing.
    lines = "\n".join(line for line in page.splitlines() if "isochrone_division_present" in line)
    for family in text_string_to_metric_families(lines + "\n"):
        for sample in family.samples:
            if sample.name == "isochrone_division_present" and sample.value:
                return sample.labels["division"]
    return ""


async def run_live(
    network: EmulatedNetwork,
    url: str,
    metrics_url: str,
    inputs: Mapping[str, Any],
    rate: float,
    clock: Callable[[], float] = time.monotonic,
) -> LiveRun:
    """``rate``: requests a second, sent whether or not those before have been answered."""
    run = LiveRun()
    async with isochrone.AsyncClient(url, retries=0) as client, httpx.AsyncClient(trust_env=False) as metrics:
        await client.infer(MODEL, inputs, deadline_ms=_DEADLINE_MS)
        begin = clock()

        async def request() -> None:
            began = clock()
            try:
                await client.infer(MODEL, inputs, deadline_ms=_DEADLINE_MS)
            except IsochroneError as error:
                run.failed.append((began - begin, f"{type(error).__name__}: {error}"))
            else:
                run.answered.append((began - begin, clock() - began))

        async def watch() -> None:
            while clock() - begin < END:
                name = present_division((await metrics.get(metrics_url)).text)
                if name and (not run.divisions or run.divisions[-1][1] != name):
                    run.divisions.append((clock() - begin, name))
                await asyncio.sleep(_LOOK_SECONDS)

        async def change() -> None:
            for at, settings in ((CHANGES, BAD), (BACK, GOOD)):
                await asyncio.sleep(max(0.0, begin + at - clock()))
                network.set(settings)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch())
            tasks.create_task(change())
            for number in range(int(END * rate)):
                await asyncio.sleep(max(0.0, begin + number / rate - clock()))
                tasks.create_task(request())
    return run
