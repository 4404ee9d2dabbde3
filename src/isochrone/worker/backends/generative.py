"""The interface of a model that generates tokens: the worker decides what each step computes, the model computes it.

``worker.generation`` calls a ``GenerativeExecutable`` from one thread of its own, which owns the device. A step is a
list of rows, each with the tokens of one sequence: one token of a sequence that decodes, or a chunk of a prompt. Keys
and values of earlier tokens are in blocks of a paged cache; the worker decides which block belongs to which sequence,
the model only reads and writes the blocks that a row names.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from isochrone.errors import Unsupported
from isochrone.worker.backends.interface import Executable

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors


class Sampling(NamedTuple):
    """How the next token of a row is chosen."""

    #: 0: the most probable token; the other values have no effect then.
    temperature: float = 1.0
    #: Only the most probable tokens; 0: all.
    top_k: int = 0
    #: Only the most probable tokens whose probabilities add up to this; 1: all.
    top_p: float = 1.0
    #: In [0, 1): decides among the tokens that are left, by the inverse of their cumulated probabilities. It is derived
    #: from the seed and the position, so that a sequence does not depend on the others of its step.
    uniform: float = 0.0


class Row(NamedTuple):
    """The tokens of one sequence that a step computes."""

    #: At least one.
    tokens: Sequence[int]
    #: The position of the first of them in the sequence: the blocks hold this many tokens already.
    start: int
    #: The blocks of the sequence in order; they have room for ``start + len(tokens)`` tokens. An object that a later
    #: step names again has at most grown at its end.
    blocks: Sequence[int]
    #: None: no token follows yet, since more of the prompt does.
    sampling: Sampling | None
    #: Not negative: the row's one token is what the row of this number chose in the step launched before, which the
    #: worker does not know yet; ``tokens`` only holds its place.
    follows: int = -1


class Chosen(NamedTuple):
    """The token that follows a row, and the logarithm of its probability before temperature, top-k and top-p."""

    token: int
    log_probability: float


class FailedRow(NamedTuple):
    """A row that has no next token. The other rows of its step have theirs."""

    reason: str


#: What a step gives for a row; None: no token was asked for.
Result = Chosen | FailedRow | None


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """What the loaded model can hold."""

    #: Longest sequence, prompt and answer together.
    context_tokens: int
    #: Tokens of one block of the cache.
    block_tokens: int
    #: Number of blocks.
    blocks: int
    #: Most rows of one step.
    rows: int
    #: Most tokens of prompts in one step; a longer prompt takes several steps.
    prefill_tokens: int


class Tokenizer(Protocol):
    """Text to tokens and back. Any thread may call it."""

    #: Tokens that end an answer.
    end_tokens: frozenset[int]

    def encode(self, text: str, *, special: bool) -> list[int]:
        """``special``: add the tokens that stand at the beginning of a prompt; a chat's text has them already."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special tokens. Bytes that are no character yet become U+FFFD."""

    def piece(self, token: int) -> str | None:
        """The text of a token, if it is the same beside any others; None: it depends on them."""

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt of a chat by the model's template; raises ``InvalidArgument``, also if there is no template."""


class GenerativeExecutable(Executable):
    """One loaded instance of a model that generates. The worker calls none of ``execute`` and ``stream``."""

    inline_allowed = False
    decoupled = True
    warms_up = False

    limits: GenerationLimits
    tokenizer: Tokenizer
    #: Whether the device computes on its own after ``launch`` has returned: the worker has time for other things then.
    computes_alone = True
    #: Whether a step may be launched before the one before is collected: the device then never waits for the worker.
    #: Steps are computed in the order of their launches, so blocks that a step in flight writes can be given to others.
    launches_ahead = False

    def warm_steps(self) -> None:
        """Runs the sizes of step that requests will need (and captures them, on a GPU). Called once, on the thread that
        calls the other methods later."""

    @abc.abstractmethod
    def launch(self, rows: Sequence[Row]) -> None:
        """Starts a step. It may return before the device has finished; ``collect`` is called before the next launch, or
        before the second next where ``launches_ahead``.

        It must not depend on other rows: a row gets the same token, whatever it is computed with.
        """

    @abc.abstractmethod
    def collect(self) -> list[Result]:
        """Waits for the step that was launched first: for each row its token, or None where ``sampling`` is None.

        A row whose logits are not numbers is a ``FailedRow``: the worker fails its sequence alone. It raises if the
        step failed; then nothing of the step counts, and the worker fails its sequences.
        """

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        raise Unsupported("a model that generates answers through a stream of responses")
