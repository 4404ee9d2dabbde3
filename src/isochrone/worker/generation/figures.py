"""What a version that generates says of itself: predictions for load reports, counts for the metrics page.

Gateways compare the predictions with the deadlines of requests. Reads alone; on the loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.clock import NEVER, SECOND, now_ns
from isochrone.observe.snapshot import GenerationSnapshot, sum_histograms
from isochrone.worker.generation.scheduling.admission import Candidate

if TYPE_CHECKING:
    from isochrone.worker.generation.engine_loads import EngineLoads
    from isochrone.worker.generation.engine_states import EngineStates
    from isochrone.worker.generation.prompt_sizes import PromptSizes
    from isochrone.worker.generation.prompts import PromptThread
    from isochrone.worker.generation.refusals import RefusalCounts

#: Reported as the wait where no engine is left that could answer: nobody knows how long.
UNKNOWN_WAIT_NS = 3600 * SECOND


class GenerationFigures:
    """The figures of one version."""

    def __init__(
        self,
        engines: EngineStates,
        loads: EngineLoads,
        prompts: PromptThread,
        sizes: PromptSizes,
        refusals: RefusalCounts,
        default_priority: int,
    ) -> None:
        self._engines = engines
        self._loads = loads
        self._prompts = prompts
        self._sizes = sizes
        self._refusals = refusals
        self._default_priority = default_priority

    # Predictions.

    def estimated_wait(self, now: int) -> int:
        """ns until the first token of a request with a prompt of the mean length."""
        if not self._engines.serving:
            return UNKNOWN_WAIT_NS
        candidate = self._next_request(round(self._sizes.mean_tokens), now, NEVER)
        _, load = self._loads.soonest(candidate, now)
        return load.first_token_at(candidate, now) - now

    def least_wait(self, now: int) -> int:
        """ns until the first token of a request with the shortest prompt that is due before all others of its priority:
        no other can have it sooner."""
        if not self._engines.serving:
            return UNKNOWN_WAIT_NS
        candidate = self._next_request(1, now, now)
        _, load = self._loads.soonest(candidate, now)
        return load.as_admitted().first_token_at(candidate, now) - now

    def estimated_inter_token(self, now: int) -> int:
        """ns between tokens with one more request of the shortest prompt, where that would be answered soonest; 0: not
        known."""
        if not self._engines.serving:
            return 0
        candidate = self._next_request(1, now, NEVER)
        _, load = self._loads.soonest(candidate, now)
        return load.as_admitted().inter_token_ns(candidate)

    def _next_request(self, tokens: int, now: int, first_deadline: int) -> Candidate:
        """A request of the default priority that would come now, with a prompt of so many tokens."""
        tokens, priority = max(1, tokens), self._default_priority
        size = self._sizes.characters_of(tokens)
        # One that is due at once is tokenised before the others of its priority.
        ready = now + self._prompts.expected_ns(size, priority - (first_deadline == now), now)
        return Candidate(tokens, priority, now, first_deadline, ready=ready)

    # The state of the engines.

    @property
    def cache_utilization(self) -> float:
        """The share of the blocks of the cache that sequences hold."""
        blocks = sum(engine.load.limits.blocks for engine in self._engines.serving)
        return sum(engine.load.blocks_in_use for engine in self._engines.serving) / blocks if blocks else 0.0

    @property
    def token_capacity(self) -> int:
        """Tokens that the cache can hold."""
        limits = [engine.load.limits for engine in self._engines.serving]
        return sum(each.blocks * each.block_tokens for each in limits)

    @property
    def hung_instances(self) -> int:
        """Engines whose step does not end."""
        return len(self._engines.hung)

    def snapshot(self, model_name: str, model_version: str) -> GenerationSnapshot:
        """For the metrics page."""
        engines = self._engines.engines
        counts = [engine.counts for engine in engines]
        loads = [engine.load for engine in engines]
        return GenerationSnapshot(
            model_name,
            model_version,
            generated_tokens=sum(each.generated_tokens for each in counts),
            prompt_tokens=sum(each.prompt_tokens for each in counts),
            reused_tokens=sum(engine.scheduler.reused_tokens for engine in engines),
            late_tokens=sum(each.late_tokens for each in counts),
            steps=sum(each.steps for each in counts),
            preemptions=sum(engine.scheduler.preemptions for engine in engines),
            refusals=dict(self._refusals.by_code),
            running=sum(load.running for load in loads),
            waiting=self._loads.waiting(now_ns()),
            blocks=sum(load.limits.blocks for load in loads),
            blocks_in_use=sum(load.blocks_in_use for load in loads),
            first_token=sum_histograms([each.first_token.snapshot() for each in counts]),
            between_tokens=sum_histograms([each.between_tokens.snapshot() for each in counts]),
        )
