"""The parts of the generation bench with a worker that answers at once: what they send, and what they add."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from bench.gpu.generation.parts import prefill
from bench.gpu.generation.repository import SIZES
from bench.gpu.generation.stream_figures import Streams
from bench.gpu.generation.streams import CUT, Stream
from bench.gpu.generation.workload import Flow

MS = 1_000_000


class Bench:
    """Notes the jobs; the streams of each flow are those that it is given."""

    def __init__(self, wanted: Callable[[str], bool], tokens: int) -> None:
        self.sizes = SIZES["tiny"]
        self.given = argparse.Namespace(
            seconds=1.0, warm=0.0, rounds=1, long_rate=None, wanted=wanted, say=lambda text: None
        )
        self.figures: list[dict[str, Any]] = []
        self.results = SimpleNamespace(add=self._add)
        self.jobs: list[tuple[Flow, ...]] = []
        self._tokens = tokens

    def _add(self, **figure: Any) -> dict[str, Any]:
        self.figures.append(figure)
        return figure

    def has_time(self, seconds: float, *cells: str) -> bool:
        return True

    @contextmanager
    def variant(self, name: str, parameters: Any = None) -> Iterator[str]:
        yield name

    def run(self, model: str, flows: tuple[Flow, ...], seconds: float) -> Streams:
        self.jobs.append(flows)
        made = []
        for number, _ in enumerate(flows):
            stream = Stream(number, self._tokens, 0)
            stream.times.extend(10 * MS + 7 * MS * token for token in range(self._tokens))
            stream.tokens.extend([1] * self._tokens)
            stream.status, stream.ended = CUT, 900 * MS
            made.append(stream)
        return Streams.joined([Streams.of(made)], 0)


def deadlines_between_tokens(bench: Bench) -> list[float | None]:
    """Of the streams beside the long prompts."""
    return [flows[0].parameters.get("inter_token_ms") for flows in bench.jobs if len(flows) == 2]


def test_the_deadline_of_prefill_is_four_times_the_measured_time_between_tokens() -> None:
    alone: Any = Bench(lambda cell: cell == "prefill/deadline", 20)
    prefill(alone)
    assert deadlines_between_tokens(alone) == [pytest.approx(28.0)]
    assert [each["cell"] for each in alone.figures] == ["prefill/deadline"]
    every: Any = Bench(lambda cell: True, 20)
    prefill(every)
    assert deadlines_between_tokens(every) == [None, None, None, pytest.approx(28.0)]
    # One that asks for the rate of long prompts, and one of each cell.
    assert len(every.jobs) == 1 + 5


def test_without_a_time_between_tokens_there_is_no_deadline() -> None:
    bench: Any = Bench(lambda cell: cell == "prefill/deadline", 1)
    prefill(bench)
    assert deadlines_between_tokens(bench) == []
    assert "no time between tokens" in bench.figures[-1]["problem"]
