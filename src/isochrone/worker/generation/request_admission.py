"""From a request to a job and the engine that answers it soonest, or to a refusal. Runs on the loop's thread.

The prompt is not tokenised yet: its tokens are a guess, which the engine's scheduler replaces when it decides again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from isochrone.clock import NEVER, now_ns
from isochrone.worker.generation.answers.job import Job
from isochrone.worker.generation.prompt_sizes import PromptSizes, check_size
from isochrone.worker.generation.requests.requests import read_request
from isochrone.worker.generation.scheduling.admission import Candidate, EngineLoad, refusal

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.generation.engine import GenerationEngine
    from isochrone.worker.generation.engine_loads import EngineLoads
    from isochrone.worker.generation.engine_states import EngineStates
    from isochrone.worker.generation.prompts import PromptThread
    from isochrone.worker.generation.refusals import RefusalCounts
    from isochrone.worker.generation.settings import GenerationSettings


class RequestAdmission:
    """Admits the requests of one version."""

    def __init__(
        self,
        name: str,
        settings: GenerationSettings,
        engines: EngineStates,
        loads: EngineLoads,
        prompts: PromptThread,
        sizes: PromptSizes,
        refusals: RefusalCounts,
    ) -> None:
        self._name = name
        self._settings = settings
        self._engines = engines
        self._loads = loads
        self._prompts = prompts
        self._sizes = sizes
        self._refusals = refusals

    def admit(self, request: InferRequest) -> tuple[Job, GenerationEngine]:
        """Raises where the request is malformed, too long, or cannot keep its deadlines."""
        self._engines.drop_lost_and_require_serving()
        wanted = read_request(request, self._settings.defaults)
        check_size(wanted, max(engine.load.limits.context_tokens for engine in self._engines.engines))
        now = now_ns()
        priority = request.plan.priority or self._settings.default_priority
        first_ns = wanted.parameters.first_token_ns
        first_deadline = min(request.deadline, request.arrived + first_ns if first_ns else NEVER)
        estimated = self._sizes.tokens_of(wanted.size)
        inter_token_ns = wanted.parameters.inter_token_ns
        ready = now + self._prompts.expected_ns(wanted.size, priority, now)
        candidate = Candidate(estimated, priority, request.arrived, first_deadline, inter_token_ns, ready)
        engine, load = self._loads.soonest(candidate, now)
        # The figure is a guess that the engine's scheduler replaces; only it can tell whether a prompt fits.
        capped = replace(candidate, prompt_tokens=min(estimated, load.limits.context_tokens - 1, _room(load)))
        error = refusal(load, capped, now, self._settings.rules.max_waiting)
        if error is not None:
            self._refusals.count(error)
            raise error.within(f"model '{self._name}'")
        return Job(request, wanted, priority, estimated, first_deadline), engine


def _room(load: EngineLoad) -> int:
    return load.limits.blocks * load.limits.block_tokens
