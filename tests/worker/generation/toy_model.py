"""A model whose next token is a hash of everything before it, read from its own blocks: a wrong block table, a block
that was given away too early, or a token computed twice gives another answer than ``answer_of``.

It stands in for the backend ``generation`` in tests: a module with ``load``, as a backend has.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from isochrone.errors import InvalidArgument
from isochrone.worker.backends.generative import (
    Chosen,
    FailedRow,
    GenerationLimits,
    GenerativeExecutable,
    Result,
    Row,
    Sampling,
)
from isochrone.worker.backends.interface import LoadContext
from isochrone.worker.generation.requests.sampling import GenerationParameters
from isochrone.worker.generation.scheduling.step_times import StepCosts, StepTimes

END = 256
LIMITS = GenerationLimits(context_tokens=256, block_tokens=4, blocks=64, rows=8, prefill_tokens=16)
#: A prompt with this makes the step that computes it fail, …
POISON = ord("!")
#: … and one with this the row that would follow it.
SPOILED = ord("?")


class FixedTimes(StepTimes):
    """Steps take what is said, whatever they take."""

    def __init__(self, limits: GenerationLimits, costs: StepCosts) -> None:
        super().__init__(limits)
        self.costs = costs

    def observe(self, rows: int, context: int, prefill: int, ns: int) -> None:
        """Nothing is learned."""


class ByteTokenizer:
    """A token is a byte; 256 ends an answer."""

    end_tokens = frozenset((END,))

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")

    def piece(self, token: int) -> str | None:
        return None

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        if any(not isinstance(message.get("content"), str) for message in messages):
            raise InvalidArgument("messages: expected a 'content' that is a string")
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)


class GatedTokenizer(ByteTokenizer):
    """Waits for a permit for each prompt."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.begun: list[str] = []
        self.is_open = False

    def encode(self, text: str, *, special: bool) -> list[int]:
        self.begun.append(text)
        if not self.is_open:
            self.gate.acquire()
        return super().encode(text, special=special)

    def open(self) -> None:
        self.is_open = True
        self.gate.release(1000)


def next_token(tokens: Sequence[int], sampling: Sampling, end_every: int = 0) -> Chosen:
    """Letters, and the end token once in ``end_every``."""
    drawn = "" if not sampling.temperature else f"{sampling.uniform:.6f}"
    number = int.from_bytes(blake2b(f"{list(tokens)}{drawn}".encode(), digest_size=8).digest(), "little")
    is_end = end_every and number % end_every == 0
    return Chosen(END if is_end else ord("a") + (number >> 8) % 26, -float(number % 100) / 100)


def answer_of(
    prompt: str, parameters: GenerationParameters, end_every: int = 0, limits: GenerationLimits = LIMITS
) -> str:
    """The text of an answer, computed the plain way. Parameters need a seed unless their temperature is 0."""
    tokens = list(prompt.encode())
    text = ""
    for _ in range(parameters.max_tokens):
        if len(tokens) >= limits.context_tokens:
            break
        chosen = next_token(tokens, parameters.sampling(len(tokens)), end_every)
        tokens.append(chosen.token)
        if chosen.token == END and not parameters.ignore_eos:
            break
        text += chr(chosen.token) if chosen.token < 256 else ""
        cuts = [(text.find(stop) + len(stop), text.find(stop)) for stop in parameters.stop if stop in text]
        if cuts:
            return text[: min(cuts)[1]]
    return text


class ToyModel(GenerativeExecutable):
    """``gate``: steps wait for it, once it exists."""

    ahead_by_default = False

    def __init__(
        self,
        limits: GenerationLimits = LIMITS,
        *,
        end_every: int = 0,
        step_seconds: float = 0.0,
        launches_ahead: bool | None = None,
    ) -> None:
        self.launches_ahead = self.ahead_by_default if launches_ahead is None else launches_ahead
        self.limits = limits
        self.tokenizer = ByteTokenizer()
        self.end_every = end_every
        self.step_seconds = step_seconds
        self.gate: threading.Semaphore | None = None
        self.entered = threading.Event()
        self.steps: list[list[Row]] = []
        #: Raised instead of the results of steps.
        self.failure: Exception | None = None
        self.is_warm = False
        self.closed = threading.Event()
        self._slots: list[list[tuple[int, int] | None]] = [[None] * limits.block_tokens for _ in range(limits.blocks)]
        self._threads: set[int] = set()
        #: Results of the steps in flight, and of the step that was launched last.
        self._chosen: deque[list[Result]] = deque()
        self._latest: list[Result] = []

    def warm_steps(self) -> None:
        self.is_warm = True
        self._threads.add(threading.get_ident())

    def launch(self, rows: Sequence[Row]) -> None:
        assert len(self._chosen) <= self.launches_ahead, "the step before was not collected"
        self._threads.add(threading.get_ident())
        assert len(self._threads) == 1, "one thread owns the model"
        assert 0 < len(rows) <= self.limits.rows
        if self.is_warm:
            self.steps.append(list(rows))
        written: set[tuple[int, int]] = set()
        rows = [row if row.follows < 0 else self._following(row) for row in rows]
        for row in rows:
            assert row.tokens
            for offset, token in enumerate(row.tokens):
                place = self._place(row, row.start + offset)
                assert place not in written, "two rows write to one place"
                written.add(place)
                self._slots[place[0]][place[1]] = (token, row.start + offset)
        chosen: list[Result] = []
        for row in rows:
            length = row.start + len(row.tokens)
            assert len(row.blocks) * self.limits.block_tokens >= length
            if row.sampling is None:
                chosen.append(None)
                continue
            tokens = self._read(row, length)
            if SPOILED in tokens:
                chosen.append(FailedRow("not numbers"))
            else:
                chosen.append(next_token(tokens, row.sampling, self.end_every))
        if any(POISON in row.tokens for row in rows):
            raise RuntimeError("out of memory")
        self._chosen.append(chosen)
        self._latest = chosen

    def _following(self, row: Row) -> Row:
        assert self.launches_ahead
        chosen = self._latest[row.follows]
        # Of a row that has failed, any token will do.
        return row._replace(tokens=[chosen.token if isinstance(chosen, Chosen) else 0])

    def _place(self, row: Row, position: int) -> tuple[int, int]:
        return row.blocks[position // self.limits.block_tokens], position % self.limits.block_tokens

    def _read(self, row: Row, length: int) -> list[int]:
        tokens = []
        for position in range(length):
            block, offset = self._place(row, position)
            slot = self._slots[block][offset]
            # Shared or stale blocks that hold another position give another token, not an error: as in a real cache.
            tokens.append(-1 if slot is None else slot[0] if slot[1] == position else -2)
        return tokens

    def collect(self) -> list[Result]:
        chosen = self._chosen.popleft()
        self.entered.set()
        if self.gate is not None:
            self.gate.acquire()
        if self.step_seconds:
            time.sleep(self.step_seconds)
        if self.failure is not None:
            raise self.failure
        return chosen

    def close(self) -> None:
        self.closed.set()


def load(context: LoadContext) -> ToyModel:
    """As a backend's ``load``; ``config.json`` has the limits that differ, ``end_every`` and ``step_seconds``."""
    given = json.loads((context.directory / "config.json").read_text())
    options = {key: given.pop(key) for key in ("end_every", "step_seconds", "launches_ahead") if key in given}
    fields = {name: getattr(LIMITS, name) for name in GenerationLimits.__slots__}
    return ToyModel(GenerationLimits(**{**fields, **given}), **options)
