"""One stretch of load over a running fleet while versions change, and the proof at its end.

The load goes on in a process of its own; whoever holds the trial asks for rollouts through it. When the block ends, the
whole history is checked: no promise broken, and no request failed. Must never end without that check.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.control.checker import check, undecidable
from bench.control.history import OK, Answer
from bench.control.load import Load, Stream
from bench.control.models import MODELS, PIPELINES
from bench.control.rollout_log import Asked, RolloutLog
from bench.control.running_fleet import CONTROLLER, RunningFleet

#: Of waits for what has to come about: two loaded cores.
SECONDS = 120.0
LOAD = (Stream("clients", rate=80.0),)


def wait_until(holds: Callable[[], object], what: str, seconds: float = SECONDS) -> float:
    """Seconds it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() < began + seconds, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - began


def isochrone(*words: str, status: int = 0) -> str:
    """What a command says; it has to end with this status."""
    command = [sys.executable, "-m", "isochrone", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == status, f"{words}: {ended.returncode}: {ended.stdout}{ended.stderr}"
    return ended.stdout


class Trial:
    """The rollouts of one stretch."""

    def __init__(self, fleet: RunningFleet) -> None:
        self._fleet = fleet
        self.log = RolloutLog(int(fleet.api.status()["epoch"]), fleet.api.versions())
        self.history: list[Answer] = []

    def ask(self, start: Callable[[], str]) -> Asked:
        """A rollout, asked for by ``start``, which gives its identity."""
        asked = self.log.ask(time.monotonic_ns())
        asked.identity = start()
        return asked

    def start(self, version: str, cutover: str = "strict", **wishes: Any) -> Asked:
        """All models go to a version, as one."""
        changes = dict.fromkeys(MODELS, version)
        return self.ask(lambda: self._fleet.api.start_rollout(changes, cutover, **wishes))

    def wait(self, asked: Asked, until: Callable[[Mapping[str, Any]], bool] | None = None) -> Mapping[str, Any]:
        """Until it is over, or as told."""
        if until is None:
            return self._fleet.api.wait(asked.identity, SECONDS, asked.see)
        return self._fleet.api.wait(asked.identity, SECONDS, asked.see, until)

    def finish(self, asked: Asked) -> Mapping[str, Any]:
        """It has to end well."""
        record = self.wait(asked)
        assert record["state"] == "done", record
        return record

    def longest_ms(self) -> float:
        return max(answer.latency_ns for answer in self.history) / 1e6

    def prove(self, pipelines: Mapping[str, Sequence[str]] = PIPELINES) -> None:
        commits = self.log.commits(self._fleet.api.rollouts())
        # Of a version that was in canary before, an answer proves nothing; every other commit must be provable.
        assert undecidable([commit for commit in commits if not commit.canary], pipelines) == []
        violations = check(self.history, commits, pipelines)
        assert not violations, "\n".join(map(str, violations[:20]))
        failed = [answer for answer in self.history if answer.outcome != OK]
        assert not failed, failed[:20]


@contextlib.contextmanager
def trial(fleet: RunningFleet, directory: Path, streams: Sequence[Stream] = LOAD) -> Iterator[Trial]:
    """The fleet is whole and under load when the block begins."""
    wait_until(lambda: all(fleet.responds(part.name) for part in fleet.of(CONTROLLER)), "all controllers answer")
    fleet.wait_serving(SECONDS)
    this = Trial(fleet)
    with Load(directory, fleet.gateways, streams) as load:
        # A client opens its file right before its first request.
        wait_until(
            lambda: all((directory / f"{stream.name}.history").exists() for stream in streams), "the load has begun"
        )
        yield this
    this.history = load.history()
    this.prove()
