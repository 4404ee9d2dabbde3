"""What is sent: the kinds of requests of a workload, each with a weight, and which kind each request is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from isochrone.clock import NEVER
from isochrone.settings.ranges import Count, Positive, PositiveAmount
from isochrone.settings.sections import Section

_BLOCK = 8192


def _text_of_integer(given: Any) -> Any:
    """2 is a valid version; 1.10 is not, because YAML reads it as the number 1.1."""
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given


class Kind(Section):
    """One kind of requests."""

    model: Annotated[str, Field(min_length=1)]
    """The model's name."""
    name: str = ""
    """Its name in reports. Without it, the name of the model."""
    version: Annotated[str, BeforeValidator(_text_of_integer)] = ""
    """The model's version. Without it, the server chooses."""
    weight: PositiveAmount = 1.0
    """Its share of requests is this, divided by the sum of all weights."""
    priority: Count = 0
    """The priority class; 0: none is sent."""
    deadline_ms: PositiveAmount | None = None
    """Sent with each request. Answers after it, counted from the intended instant, are late."""
    sequence: Count = 0
    """Requests of one sequence; 0: requests belong to none."""
    sequence_idle_ms: PositiveAmount = 500.0
    """A sequence that was idle for longer is not continued: servers drop idle ones, Triton after 1 s by default."""
    stream: bool = False
    """Whether the answer comes in pieces: gRPC streams, generate_stream over HTTP, events of OpenAI's API."""
    inputs: str = ""
    """A file with inputs: JSON (an object of name to values, or a list of them, sent in turn) or .npz. Without it, they
    are random."""
    rows: Positive = 1
    """Random inputs: the first dimension, where the model leaves it open."""
    shapes: dict[str, list[Positive]] = Field(default_factory=dict)
    """Random inputs: shapes by name, without the batch, of inputs with other open dimensions."""
    parameters: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Parameters of each request."""
    prompt: str = "Describe the ocean in one sentence."
    """Of models that generate text: OpenAI's API and generate_stream."""
    chat: bool = True
    """OpenAI's API: chat completions; otherwise completions."""
    max_tokens: Positive = 64
    """Of models that generate text: most tokens of an answer."""

    @property
    def label(self) -> str:
        return self.name or self.model

    @property
    def deadline_ns(self) -> int:
        """0: none."""
        return 0 if self.deadline_ms is None else round(self.deadline_ms * 1e6)


def labels(kinds: Sequence[Kind]) -> tuple[str, ...]:
    """Distinct names of kinds: a second kind of one name gets a number."""
    found: list[str] = []
    for kind in kinds:
        label, number = kind.label, 2
        while label in found:
            label, number = f"{kind.label} ({number})", number + 1
        found.append(label)
    return tuple(found)


def choices(kinds: Sequence[Kind], seed: int) -> Iterator[int]:
    """The index of the kind of each request, without end; the same for the same seed."""
    if len(kinds) == 1:
        while True:
            yield 0
    weights = np.array([kind.weight for kind in kinds])
    limits = np.cumsum(weights / weights.sum())
    limits[-1] = 1.0
    random = np.random.default_rng([seed, 1])
    while True:
        yield from np.searchsorted(limits, random.random(_BLOCK), side="right").tolist()


class Sequences:
    """The sequences of one kind that are under way: a request continues one that waits for nothing, or begins one.

    So the requests of a sequence follow each other, however many sequences there are, as a stateful model requires.
    Those that wait are continued in turn. One that was idle for too long is not continued: the server has dropped it.
    """

    def __init__(self, length: int, first_id: int, most_idle_ns: int = NEVER) -> None:
        self._length = length
        self._next_id = first_id
        self._most_idle_ns = most_idle_ns
        #: Id, requests sent so far, and since when, of sequences without a request in flight. The oldest first.
        self._idle: deque[tuple[int, int, int]] = deque()

    def take(self, now: int) -> tuple[int, int]:
        """The id of the sequence for the next request, and how many requests it had before."""
        idle = self._idle
        while idle:
            sequence_id, position, since = idle.popleft()
            if now - since <= self._most_idle_ns:
                return sequence_id, position
        self._next_id += 1
        return self._next_id - 1, 0

    def give_back(self, sequence_id: int, position: int, now: int, *, answered: bool) -> None:
        """The request number ``position`` has ended. A sequence with a request that failed is not continued."""
        if answered and position + 1 < self._length:
            self._idle.append((sequence_id, position + 1, now))

    def parameters(self, sequence_id: int, position: int) -> dict[str, Any]:
        return {
            "sequence_id": sequence_id,
            "sequence_start": position == 0,
            "sequence_end": position == self._length - 1,
        }
