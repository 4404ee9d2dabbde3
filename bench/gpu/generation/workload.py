"""Requests of the generation bench: prompts of chosen lengths in tokens, answers of chosen lengths, all from a seed.

Every prompt begins with its own number, so no request finds the blocks of another unless a prefix is shared on purpose.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from bench.worker.peers.process import REPOSITORY_ROOT

#: Characters of the text that prompts are cut from.
_TEXT_CHARACTERS = 400_000
#: Requests per second.
_FEW = 20.0


@dataclass(frozen=True)
class Lengths:
    """Lengths from ``least`` to ``most``, each doubling as frequent as the next: many short ones, some long ones."""

    least: int
    most: int

    def draw(self, source: random.Random) -> int:
        return round(math.exp(source.uniform(math.log(self.least), math.log(self.most))))


@dataclass(frozen=True)
class Flow:
    """Requests of one kind: a closed loop of ``streams``, or an open one of ``rate`` requests per second."""

    name: str
    prompts: Lengths
    answers: Lengths
    streams: int = 0
    rate: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def share(self, number: int, count: int) -> Flow:
        """The part of one of ``count`` generators."""
        streams = self.streams // count + (number < self.streams % count)
        # Few arrivals come from one generator: a share of them might be none.
        rate = self.rate / count if self.rate >= _FEW else self.rate if not number else 0.0
        return Flow(self.name, self.prompts, self.answers, streams, rate, self.parameters)


@dataclass(frozen=True)
class Request:
    """One request, ready to be sent, and the tokens that its answer must have."""

    body: bytes
    answer_tokens: int


class Texts:
    """Text that can be cut to a number of tokens of one tokenizer."""

    def __init__(self, tokenizer_file: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_file(str(tokenizer_file))
        words = sorted({word for path in sorted((REPOSITORY_ROOT / "docs").glob("*.md")) for word in _words(path)})
        source = random.Random(7)
        text = " ".join(source.choice(words) for _ in range(_TEXT_CHARACTERS // 7))
        self._text = text
        self._offsets = [begin for begin, _ in self._tokenizer.encode(text, add_special_tokens=False).offsets]

    def cut(self, tokens: int, source: random.Random) -> str:
        """A text of about ``tokens`` tokens from a random place."""
        begin = source.randrange(len(self._offsets) - tokens - 1)
        return self._text[self._offsets[begin] : self._offsets[begin + tokens]]

    def tokens(self, text: str) -> list[int]:
        """As the worker makes them of a prompt."""
        found: list[int] = self._tokenizer.encode(text).ids
        return found


def _words(path: Path) -> list[str]:
    return [word for word in path.read_text("utf-8").split() if word.isalpha() and word.isascii()]


@lru_cache(maxsize=4)
def texts_of(tokenizer_file: Path) -> Texts:
    return Texts(tokenizer_file)


class Requests:
    """The requests of one flow of one generator."""

    def __init__(self, texts: Texts, flow: Flow, seed: int) -> None:
        self._texts, self._flow = texts, flow
        self._source = random.Random(f"{flow.name} {seed}")
        self._seed = seed
        self._made = 0

    def next(self) -> Request:
        flow, source = self._flow, self._source
        self._made += 1
        identity = f"{self._seed}-{self._made}"
        # The number takes a few tokens.
        prompt = f"{identity} {self._texts.cut(max(1, flow.prompts.draw(source) - 4), source)}"
        return request(prompt, flow.answers.draw(source), source.getrandbits(31), identity, flow.parameters)


def request(prompt: str, answer_tokens: int, seed: int, identity: str, parameters: Mapping[str, Any]) -> Request:
    """The body of ``generate_stream``. End tokens are ignored, so the length of the answer is known."""
    body = {
        "id": identity,
        "text_input": prompt,
        "stream": True,
        "max_tokens": answer_tokens,
        "ignore_eos": True,
        "temperature": 0.8,
        "seed": seed,
        "return_num_output_tokens": True,
        **parameters,
    }
    return Request(json.dumps(body).encode(), answer_tokens)
