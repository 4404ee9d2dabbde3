"""One process of agents: ``python -m bench.control_loop.agents``, which ``bench.control_loop`` starts.

All agents run their loops in one event loop over one client, spread over the period. Their models are trivial, so that
the loop and the client are what costs. Prints one line of JSON: for each phase what was counted (``report``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import uvloop

import isochrone
from bench.worker.machine import at_real_time_priority
from isochrone.client.control_loop.times import LoopSummary

MODEL = "identity"
FALLBACK = {"OUT": np.zeros(4, np.float32)}


class Agent:
    def __init__(self, client: isochrone.AsyncClient, hz: float, *, has_local: bool) -> None:
        self.sensed = 0
        self.acted = 0
        #: When an answer of the remote model was first used since the phase began.
        self.first_remote: float | None = None
        self._observed = {"IN": np.zeros(4, np.float32)}
        period = 1000 / hz
        self.loop = isochrone.ControlLoop(
            client,
            MODEL,
            hz=hz,
            sense_ms=period * 0.1,
            infer_ms=period * 0.75,
            act_ms=period * 0.15,
            sense=self._sense,
            act=self._act,
            local=_local if has_local else None,
            fallback=FALLBACK,
            hold_last_ticks=5,
        )

    def _sense(self) -> Mapping[str, Any]:
        self.sensed += 1
        return self._observed

    def _act(self, action: Any) -> None:
        self.acted += 1
        if self.first_remote is None and action.source == "remote":
            self.first_remote = time.monotonic()


def _local(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"OUT": inputs["IN"]}


def counted(before: LoopSummary, after: LoopSummary) -> Counter[str]:
    found: Counter[str] = Counter()
    for kind in ("sources", "misses", "remote_failures"):
        old, new = getattr(before, kind), getattr(after, kind)
        found.update({f"{kind}.{key}": new[key] - old.get(key, 0) for key in new})
    for name in ("ticks", "requests", "probes", "late_answers", "doubts"):
        found[name] = getattr(after, name) - getattr(before, name)
    return found


async def phase(agents: list[Agent], hz: float, began: float, seconds: float) -> dict[str, Any]:
    ticks = round(seconds * hz)
    before = [agent.loop.summary() for agent in agents]
    actions = sum(agent.acted for agent in agents)
    sensed = sum(agent.sensed for agent in agents)
    cpu = time.process_time()

    async def run(number: int, agent: Agent) -> None:
        agent.first_remote = None
        await asyncio.sleep(max(0.0, began + number / len(agents) / hz - time.monotonic()))
        await agent.loop.run(ticks)

    async with asyncio.TaskGroup() as group:
        for number, agent in enumerate(agents):
            group.create_task(run(number, agent))
    total: Counter[str] = Counter()
    for agent, old in zip(agents, before, strict=True):
        total.update(counted(old, agent.loop.summary()))
    return {
        "due": ticks * len(agents),
        "counts": dict(total),
        "without_action": sum(agent.sensed for agent in agents) - sensed - (sum(a.acted for a in agents) - actions),
        "first_remote_seconds": [
            None if agent.first_remote is None else agent.first_remote - began for agent in agents
        ],
        "cpu_seconds": time.process_time() - cpu,
    }


async def main(given: argparse.Namespace) -> None:
    found = []
    async with isochrone.AsyncClient(given.url, retries=0) as client:
        agents = [Agent(client, given.hz, has_local=given.local) for _ in range(given.agents)]
        began = given.begin
        for seconds in map(float, given.seconds.split(",")):
            found.append(await phase(agents, given.hz, began, seconds))
            began += seconds
        for agent in agents:
            await agent.loop.close()
    print(json.dumps({"pid": os.getpid(), "phases": found}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--hz", type=float, required=True)
    parser.add_argument("--seconds", required=True, help="of each phase")
    parser.add_argument("--begin", type=float, required=True, help="of the first phase, on the monotonic clock")
    parser.add_argument("--local", action="store_true", help="with a local model")
    parser.add_argument("--real-time", action="store_true", help="before all ordinary processes")
    asked = parser.parse_args()
    if asked.real_time and not at_real_time_priority(10):
        parser.error("--real-time: not permitted here")
    uvloop.run(main(asked))
