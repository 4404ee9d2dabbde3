"""The loads of a version's engines as the loop's thread knows them, and the engine that would answer soonest.

An engine publishes its load between steps. Requests that were passed to it since then are added here, so that many
which come at once do not all count on the same free rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from isochrone.worker.generation.hangs import longest_step
from isochrone.worker.generation.scheduling.admission import Candidate, EngineLoad

if TYPE_CHECKING:
    from isochrone.worker.generation.answers.job import Job
    from isochrone.worker.generation.engine import GenerationEngine
    from isochrone.worker.generation.engine_states import EngineStates
    from isochrone.worker.generation.scheduling.sequence import Key


class EngineLoads:
    """The engines of one version."""

    def __init__(self, engines: EngineStates) -> None:
        self._engines = engines
        #: Jobs that the picture of the engine's load does not show yet.
        self._unseen: dict[GenerationEngine, list[Job]] = {engine: [] for engine in engines.engines}
        #: That picture, and the same with these jobs.
        self._loads: dict[GenerationEngine, tuple[EngineLoad, EngineLoad]] = {}

    def add(self, job: Job, engine: GenerationEngine) -> None:
        """A request is passed to an engine whose load was read for it."""
        self._unseen[engine].append(job)
        shown, known = self._loads[engine]
        self._loads[engine] = shown, known.with_arrivals([_arrival(job)])

    def soonest(self, candidate: Candidate, now: int) -> tuple[GenerationEngine, EngineLoad]:
        """The engine that would answer first, and its load. There must be one that serves."""
        loads = [(engine, self._load(engine, now)) for engine in self._engines.serving]
        if len(loads) == 1:
            return loads[0]
        return min(loads, key=lambda each: (each[1].first_token_at(candidate, now), each[1].running + each[1].waiting))

    def waiting(self, now: int) -> int:
        """Sequences that wait for their first step."""
        return sum(self._load(engine, now).waiting for engine in self._engines.serving)

    def _load(self, engine: GenerationEngine, now: int) -> EngineLoad:
        """The load of an engine, with the requests that it does not show yet, and a step that takes too long."""
        shown = engine.load
        before, load = self._loads.get(engine, (None, shown))
        if before is not shown:
            unseen = self._unseen[engine] = [
                job for job in self._unseen[engine] if not job.is_known and not job.is_over
            ]
            load = shown.with_arrivals(map(_arrival, unseen)) if unseen else shown
            self._loads[engine] = shown, load
        ran = now - engine.step_began
        if engine.step_began and ran > longest_step(load) > 0:
            # Nobody knows when it ends; what has taken long will take long.
            load = replace(load, step_end=now + ran)
        return load


def _arrival(job: Job) -> tuple[Key, int, int]:
    order = (job.priority, True, job.turn_deadline, 0)
    return order, job.estimated_tokens, job.wanted.parameters.inter_token_ns
