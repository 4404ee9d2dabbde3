"""The state of one sequence of tokens: a prompt and the answer that grows behind it.

The scheduler changes it, on the thread of its engine; everything here is plain data.
"""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.clock import NEVER, SECOND
from isochrone.worker.generation.requests.sampling import Draws, GenerationParameters
from isochrone.worker.generation.scheduling.blocks import BlockPool, BlockTable

#: A sequence without a deadline for its first token waits in line as if the token were due so long after its arrival:
#: otherwise it would wait for ever behind others that come later.
PATIENCE_NS = 10 * SECOND


def turn_deadline(first_deadline: int, arrived: int) -> int:
    """By which those that wait take their turns: the earliest first."""
    return first_deadline if first_deadline != NEVER else arrived + PATIENCE_NS


#: Why a sequence ended; as OpenAI and vLLM call it.
STOP, LENGTH = "stop", "length"

#: (priority, whether it waits for its first token, deadline for the order, number): smallest first.
Key = tuple[int, bool, int, int]


class TokenSequence:
    """One sequence. Times are monotonic ns."""

    __slots__ = (
        "admitted_at",
        "arrived",
        "computed",
        "deadline",
        "draws",
        "end_tokens",
        "first_at",
        "first_deadline",
        "is_decoding",
        "is_ended",
        "is_paused",
        "is_running",
        "job",
        "last_at",
        "limit",
        "number",
        "order",
        "parameters",
        "pending",
        "place",
        "predicted_wait",
        "preemptions",
        "previous_at",
        "priority",
        "prompt_tokens",
        "reused",
        "started_at",
        "table",
        "tokens",
    )

    def __init__(
        self,
        prompt: Sequence[int],
        parameters: GenerationParameters,
        *,
        priority: int = 1,
        arrived: int = 0,
        deadline: int = NEVER,
        end_tokens: frozenset[int] = frozenset(),
        job: object = None,
    ) -> None:
        self.tokens = list(prompt)
        self.prompt_tokens = len(self.tokens)
        self.parameters = parameters.seeded()
        self.draws = Draws(self.parameters)
        #: Triton's numbering: 1 is highest.
        self.priority = priority
        self.arrived = arrived
        own = arrived + parameters.first_token_ns if parameters.first_token_ns else NEVER
        #: When the first token is due; NEVER: at any time.
        self.first_deadline = min(own, deadline)
        #: When the whole answer is due.
        self.deadline = deadline
        self.end_tokens = end_tokens
        #: What the engine knows of it.
        self.job = job
        #: Given by the scheduler: the order of arrival, and the most tokens that it may have.
        self.number = 0
        #: Which comes first of those that wait for their prompt to be computed. A sequence that was preempted after it
        #: had sent tokens comes before those that have sent none.
        self.order: Key
        self.limit = self.prompt_tokens + parameters.max_tokens
        self.table: BlockTable
        #: Tokens whose keys and values are in the blocks, or will be after the steps that are launched.
        self.computed = 0
        #: Launched steps that will each give a token, and its row in the latest of them.
        self.pending = self.place = 0
        #: Tokens that were found in the cache when it started.
        self.reused = 0
        #: Everything before its last token is computed or launched, and the last one is part of the answer. Its next
        #: step has one token. The scheduler keeps it: it asks for it several times a step.
        self.is_decoding = False
        #: It has left the scheduler: what steps in flight give for it is dropped.
        self.is_ended = False
        #: It holds blocks.
        self.is_running = False
        #: Its caller does not read: nothing is computed for it.
        self.is_paused = False
        self.preemptions = 0
        #: When it was admitted, and the wait for its first token that was predicted then; 0: it may come at any time.
        self.admitted_at = self.predicted_wait = 0
        #: When it was first part of a step, and when its first, its latest and the token before came; 0: not yet.
        self.started_at = self.first_at = self.last_at = self.previous_at = 0

    def give_blocks(self, pool: BlockPool, number: int, limit: int) -> None:
        self.table = BlockTable(pool)
        self.number = number
        self.order = (self.priority, True, turn_deadline(self.first_deadline, self.arrived), number)
        self.limit = min(self.limit, limit)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def left(self) -> int:
        """Tokens that are known and not yet computed; at least one."""
        return len(self.tokens) - self.computed

    @property
    def due(self) -> int:
        """When its next deadline is that ends it, if it passes."""
        return self.deadline if self.first_at else self.first_deadline

    @property
    def seniority(self) -> tuple[int, int]:
        """Which may take blocks from others: a smaller one from a larger one."""
        return (self.priority, self.number)

    def add(self, token: int, now: int) -> str | None:
        """Adds the token that followed; returns why the sequence ends with it, or None."""
        tokens = self.tokens
        tokens.append(token)
        self.previous_at, self.last_at = self.last_at, now
        if not self.first_at:
            self.first_at = now
            self.order = (self.priority, False, 0, self.number)
        if token in self.end_tokens:
            parameters = self.parameters
            if not parameters.ignore_eos and self.generated >= parameters.min_tokens:
                return STOP
        return LENGTH if len(tokens) >= self.limit else None
