"""The runner of a version that generates: requests in, responses out, on the loop's thread.

It joins the parts: ``request_admission`` refuses what cannot keep its deadlines and chooses an engine, ``prompts``
tokenises, ``jobs_under_way`` sends what engines deliver, ``engine_states`` keeps requests from engines that cannot
answer, ``figures`` reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from isochrone.clock import now_ns
from isochrone.worker.generation.engine_loads import EngineLoads
from isochrone.worker.generation.engine_states import EngineStates
from isochrone.worker.generation.figures import GenerationFigures
from isochrone.worker.generation.jobs_under_way import JobsUnderWay
from isochrone.worker.generation.prompt_sizes import PromptSizes
from isochrone.worker.generation.prompts import PromptThread
from isochrone.worker.generation.refusals import RefusalCounts
from isochrone.worker.generation.request_admission import RequestAdmission

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.observe.snapshot import GenerationSnapshot
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.generation.engine import GenerationEngine
    from isochrone.worker.generation.settings import GenerationSettings
    from isochrone.worker.statistics import ModelStatistics


class GenerationRunner:
    """Runs one version. Its engines are warm."""

    def __init__(
        self,
        name: str,
        engines: Sequence[GenerationEngine],
        settings: GenerationSettings,
        statistics: ModelStatistics,
        request_ended: Callable[[], None],
        set_ready: Callable[[bool], None],
    ) -> None:
        """``set_ready``: told whether any engine can answer, when that changes."""
        self._statistics = statistics
        self._stalled_ns = settings.stalled_ns
        self._prompts = prompts = PromptThread(f"{name}-prompts")
        sizes, refusals = PromptSizes(), RefusalCounts()
        self._jobs = JobsUnderWay(name, statistics, request_ended, prompts, sizes, refusals)
        timeout_ns = settings.execution_timeout_ns
        self._engines = EngineStates(name, engines, timeout_ns, self._jobs.cancel_those_of, set_ready)
        self._loads = loads = EngineLoads(self._engines)
        self._admission = RequestAdmission(name, settings, self._engines, loads, prompts, sizes, refusals)
        #: For load reports and the metrics page.
        self.figures = GenerationFigures(self._engines, loads, prompts, sizes, refusals, settings.default_priority)
        loop = asyncio.get_running_loop()
        for engine in engines:
            engine.connect(loop, self._jobs.take)

    def submit(self, request: InferRequest) -> None:
        """Passes a request to an engine, or raises."""
        job, engine = self._admission.admit(request)
        self._jobs.begin(job, engine)
        self._loads.add(job, engine)
        self._prompts.submit(job, engine.executable.tokenizer, engine.prepared)

    @property
    def pending(self) -> int:
        """Sequences that wait for their first step."""
        return self._loads.waiting(now_ns())

    def estimated_wait(self, now: int) -> int:
        return self.figures.estimated_wait(now)

    def estimated_run(self) -> int:
        """Not known: nobody knows how long an answer will be."""
        return 0

    def least_run(self) -> int:
        return 0

    def steps_digest(self, stages: Mapping[str, str] | None) -> str:
        return ""

    def snapshot(self) -> GenerationSnapshot:
        """For the metrics page."""
        return self.figures.snapshot(self._statistics.model_name, self._statistics.model_version)

    def check_stuck(self, now: int) -> None:
        """Ends streams that nobody reads and engines that hang. Called about ten times a second."""
        self._jobs.cancel_unread(now, self._stalled_ns)
        self._jobs.cancel_late_prompts(now)
        self._engines.check(now)
        self._jobs.wake_paused()

    def fail_all(self, error: IsochroneError | None = None) -> None:
        """Fails all requests: the version is being unloaded and does not wait longer."""
        self._jobs.cancel_all(self._engines.reject(error))
        self._engines.abandon_running()

    def release(self) -> None:
        self._engines.release()

    def close(self) -> None:
        """Frees the engines. It waits for their threads, so it must not run on the loop."""
        self._prompts.close()
        self._engines.close()
