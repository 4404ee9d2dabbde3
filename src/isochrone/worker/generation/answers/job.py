"""One generation request inside the worker: what the loop's thread and the engine's thread know of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from isochrone.clock import NEVER
from isochrone.worker.generation.answers.responses import Piece, response
from isochrone.worker.generation.answers.text import AnswerText
from isochrone.worker.generation.scheduling.sequence import STOP, turn_deadline

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import InferRequest, Tensors
    from isochrone.worker.backends.generative import Chosen, Tokenizer
    from isochrone.worker.generation.answers.traced_steps import TracedSteps
    from isochrone.worker.generation.requests.requests import GenerationRequest
    from isochrone.worker.generation.scheduling.sequence import TokenSequence


class Delivery(NamedTuple):
    """A response, or the error that ends a request, on its way from an engine to the loop."""

    job: Job
    outputs: Tensors | None
    error: IsochroneError | None
    is_last: bool


class Job:
    """One request."""

    __slots__ = (
        "_cumulative",
        "_decode",
        "_may_stop",
        "_piece",
        "_text",
        "backlog",
        "ended_at",
        "estimated_tokens",
        "first_deadline",
        "is_admitted",
        "is_ended",
        "is_known",
        "is_over",
        "is_paused",
        "priority",
        "request",
        "sequence",
        "stalled_since",
        "steps",
        "wanted",
    )

    def __init__(
        self,
        request: InferRequest,
        wanted: GenerationRequest,
        priority: int,
        estimated_tokens: int,
        first_deadline: int = NEVER,
    ) -> None:
        self.request = request
        self.wanted = wanted
        self.priority = priority
        #: When the first token is due; NEVER: at any time.
        self.first_deadline = first_deadline

        # Of the loop's thread.
        self.estimated_tokens = estimated_tokens
        #: Its request was answered: nothing more is sent.
        self.is_over = False
        #: Responses that its client has not made room for, and since when it reads nothing; 0: it reads.
        self.backlog: deque[Delivery] = deque()
        self.stalled_since = 0
        self.is_paused = False

        # Of the engine's thread; the loop reads ``is_known`` and, after the end, the times.
        #: The scheduler has it, or has refused it.
        self.is_known = self.is_admitted = False
        self.is_ended = False
        self.sequence: TokenSequence | None = None
        self.ended_at = 0
        #: The steps that computed it, for its trace; None: it is not traced. Made by the loop, before it is known here.
        self.steps: TracedSteps | None = None
        self._decode: Callable[[Sequence[int]], str]
        self._text: AnswerText
        self._piece = Piece()
        self._may_stop = False
        self._cumulative = 0.0

    @property
    def turn_deadline(self) -> int:
        return turn_deadline(self.first_deadline, self.request.arrived)

    # On the engine's thread.

    def begin(self, sequence: TokenSequence, prompt: str, tokenizer: Tokenizer) -> None:
        self.sequence = sequence
        self.is_admitted = True
        self._decode = tokenizer.decode
        self._text = AnswerText(tokenizer.decode, self.wanted.parameters.stop, tokenizer.piece)
        if self.wanted.repeats_prompt:
            self._piece.text = prompt

    def take(self, chosen: Chosen, finish_reason: str | None) -> Delivery | None:
        """Takes the next token; returns the response that is due. ``is_ended`` tells whether a stop string came."""
        sequence = self.sequence
        assert sequence is not None
        self._cumulative += chosen.log_probability
        # The token that ends an answer is not part of its text.
        text, answer = "", self._text
        if finish_reason != STOP:
            text = answer.add(chosen.token, may_stop=self._may_stop or self._stops_now(sequence))
            if answer.is_stopped:
                finish_reason = STOP
        if finish_reason is not None:
            # What was held back may end with a stop string, too.
            text += answer.end()
            finish_reason = STOP if answer.was_cut else finish_reason
        piece = self._piece
        piece.text += text
        piece.chosen.append(chosen)
        if finish_reason is None and not (self.wanted.streams and piece.text):
            return None
        self._piece = Piece()
        outputs = response(
            self.wanted,
            piece,
            sequence.prompt_tokens,
            self._cumulative,
            finish_reason,
            self._decode,
            self.request.plan.outputs,
        )
        # Not before: what fails above must be answered, too.
        self.is_ended = finish_reason is not None
        return Delivery(self, outputs, None, finish_reason is not None)

    def _stops_now(self, sequence: TokenSequence) -> bool:
        """Whether stop strings count yet."""
        self._may_stop = sequence.generated >= sequence.parameters.min_tokens
        return self._may_stop
