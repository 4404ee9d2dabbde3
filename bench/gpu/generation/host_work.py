"""``python -m bench.gpu.generation.host_work``: what the host does for each decode step, on a machine without a GPU.

A real engine decodes with a model whose steps take no time: rows are checked and packed as for a GPU, tokens are made
text by a real tokenizer, responses are made, and nothing is computed. What is left is the time of the engine's thread,
part by part. On a GPU the parts marked * run while it computes; the others keep it waiting, unless steps are launched
ahead: then it waits only where all parts together take longer than its step.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.figures import markdown
from bench.gpu.generation.repository import SIZES, write_model
from bench.gpu.generation.workload import texts_of
from bench.worker.peers.process import scratch
from isochrone.clock import NEVER, now_ns
from isochrone.protocol.messages import InferRequest, Plan
from isochrone.worker.backends.generative import Chosen, GenerationLimits, GenerativeExecutable, Row
from isochrone.worker.backends.transformer.checkpoint.checkpoint import open_checkpoint
from isochrone.worker.backends.transformer.steps import packing
from isochrone.worker.backends.transformer.steps.prompt_packing import PromptBatch, PromptLayouts, tile_tokens
from isochrone.worker.backends.transformer.steps.sampler import kind_of
from isochrone.worker.backends.transformer.text.tokenizer import FileTokenizer
from isochrone.worker.generation.answers.job import Job
from isochrone.worker.generation.engine import GenerationEngine
from isochrone.worker.generation.requests.requests import read_request
from isochrone.worker.generation.requests.sampling import GenerationParameters
from isochrone.worker.generation.scheduling.scheduler import SchedulerRules

#: Parts of a step; those that a GPU's work hides are marked.
PARTS = {
    "take inbox, drop ended": ("_take_inbox", "_drop_ended"),
    "schedule": ("scheduler.schedule",),
    "pack": ("executable.launch",),
    "text and responses *": ("_process",),
    "load report *": ("_publish",),
    "hand to the loop *": ("_send",),
    "results": ("executable.collect",),
    "account": ("_collect",),
}


#: Tokens of each answer that are left when the measurement ends, or come while other prompts are computed.
_UNMEASURED = 60


class NoModel(GenerativeExecutable):
    """Packs rows and answers with random tokens."""

    def __init__(self, tokenizer: FileTokenizer, vocabulary: int, rows: int) -> None:
        self.tokenizer = tokenizer
        self.limits = GenerationLimits(4096, 16, 400_000 // 16, rows, 512)
        self._packer = packing.Packer(self.limits, vocabulary)
        self._batch = packing.DecodeBatch(self._packer, np.zeros((rows, self._packer.record), np.int32))
        layouts = PromptLayouts(self._packer, tile_tokens(1))
        self._prompts = PromptBatch(layouts, np.zeros(layouts.capacity, np.int32))
        self._source = np.random.default_rng(1)
        self._vocabulary = vocabulary
        self._rows: Sequence[Row] = ()
        self._results = np.zeros((2, rows))

    def launch(self, rows: Sequence[Row]) -> None:
        self._packer.check(rows)
        prompts = [row for row in rows if len(row.tokens) > 1]
        decoding = [row for row in rows if len(row.tokens) == 1]
        if prompts:
            self._prompts.pack(prompts)
        if decoding:
            kind_of([row.sampling for row in decoding])
            self._batch.pack(decoding)
        self._rows = rows

    def draw(self) -> None:
        """The device's part; not measured."""
        self._results[0] = self._source.integers(300, self._vocabulary, self.limits.rows)
        self._results[1] = -1.0

    def collect(self) -> list[Chosen | None]:
        tokens, logarithms = self._results.tolist()
        return [
            None if row.sampling is None else Chosen(int(tokens[place]), logarithms[place])
            for place, row in enumerate(self._rows)
        ]

    def close(self) -> None:
        """There is nothing to free."""


class Nowhere(InferRequest):
    """A request whose responses nobody reads."""


class NoLoop:
    """Calls at once: an engine may wait until its earlier calls have ended."""

    def call_soon_threadsafe(self, callback: Callable[..., None], *arguments: Any) -> None:
        callback(*arguments)

    call_soon = call_soon_threadsafe


class Proxy:
    """Stands in for an object of a compiled class, whose methods cannot be replaced."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


class Timers:
    """Time of methods, without that of other timed methods inside of them."""

    def __init__(self) -> None:
        self.spent: dict[str, int] = defaultdict(int)
        self._inside: list[int] = [0]

    def wrap(self, owner: Any, name: str, part: str) -> None:
        method = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            self._inside.append(0)
            began = time.thread_time_ns()
            try:
                return method(*arguments)
            finally:
                took = time.thread_time_ns() - began
                self.spent[part] += took - self._inside.pop()
                self._inside[-1] += took

        setattr(owner, name, timed)


def measure(tokenizer: FileTokenizer, texts: Any, vocabulary: int, rows: int, tokens: int) -> dict[str, float]:
    """µs per step, by part, with so many rows that decode."""
    model = NoModel(tokenizer, vocabulary, rows)
    engine = GenerationEngine(model, "host-work", SchedulerRules())
    loop: Any = NoLoop()
    engine.connect(loop, lambda deliveries: None)
    source = random.Random(3)
    for number in range(rows):
        engine._admit(*_job(engine, texts.cut(100, source), number, tokens))
    timers = Timers()
    gc.collect()
    gc.freeze()  # as the worker does after a load
    # All prompts are computed before the measurement.
    _steps(
        engine, model, lambda: all(each.is_decoding for each in engine.scheduler.running) and engine.counts.steps > 2
    )
    stand_in: Any = Proxy(engine.scheduler)
    engine.scheduler = stand_in
    for part, names in PARTS.items():
        for name in names:
            owner: Any = engine
            *path, last = name.split(".")
            for step in path:
                owner = getattr(owner, step)
            timers.wrap(owner, last, part)
    before = engine.counts.steps
    _steps(engine, model, lambda: engine.counts.steps - before >= tokens - _UNMEASURED)
    count = engine.counts.steps - before
    return {part: timers.spent[part] / count / 1e3 for part in PARTS}


def _steps(engine: GenerationEngine, model: NoModel, done: Callable[[], bool]) -> None:
    """The loop of the engine's thread."""
    outputs: Any = []
    ended = 0
    while not done():
        engine._take_inbox(False)
        now = now_ns()
        engine._drop_ended(now)
        step = engine.scheduler.schedule(now)
        engine._launch(step, now)
        engine._process(outputs)
        engine._in_flight.append((step, now))
        engine._publish(now, True)
        engine._send()
        engine._in_flight.popleft()
        model.draw()
        outputs = engine._collect(step, ended or now)
        ended = now_ns()


def _job(engine: GenerationEngine, prompt: str, seed: int, tokens: int) -> tuple[Job, tuple[str, list[int]]]:
    inputs = {"text_input": np.array([prompt.encode()], np.object_), "stream": np.array([True])}
    parameters = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0.8, "seed": seed}
    request = Nowhere(Plan("model", "", (), None, parameters), str(seed), inputs, now_ns())
    request.deadline = NEVER
    wanted = read_request(request, GenerationParameters())
    return Job(request, wanted, 1, 100), wanted.prompt(engine.executable.tokenizer)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.generation.host_work", description=__doc__)
    parser.add_argument("--rows", default="1,16,64,256")
    parser.add_argument("--tokens", type=int, default=400, help=f"of each answer; more than {_UNMEASURED}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repository", type=Path, help="where the model is kept; only its tokenizer is used")
    parser.add_argument("--tiny", action="store_true", help="a small vocabulary")
    given = parser.parse_args()
    if given.tokens <= _UNMEASURED:
        parser.error(f"--tokens: expected more than {_UNMEASURED}, given {given.tokens}")
    counts = [int(each) for each in given.rows.split(",")]
    sizes = SIZES["tiny" if given.tiny else "cpu"]
    with scratch("host-work") as directory:
        version = write_model((given.repository or directory) / "generation", sizes)
        import safetensors
        import tokenizers

        checkpoint = open_checkpoint(safetensors, version)
        tokenizer = FileTokenizer(tokenizers, version, checkpoint.config, sizes.vocabulary)
        texts = texts_of(version / "tokenizer.json")
        found = {
            rows: [measure(tokenizer, texts, sizes.vocabulary, rows, given.tokens) for _ in range(given.rounds)]
            for rows in counts
        }
    # The least: whatever else runs on the machine only adds to it.
    least = {rows: {part: min(each[part] for each in rounds) for part in PARTS} for rows, rounds in found.items()}
    table = [(part, *(f"{least[rows][part]:.1f}" for rows in counts)) for part in PARTS]
    table.append(("all", *(f"{sum(least[rows].values()):.1f}" for rows in counts)))
    hidden = {rows: sum(value for part, value in least[rows].items() if part.endswith("*")) for rows in counts}
    table.append(("of it in the device's way", *(f"{sum(least[rows].values()) - hidden[rows]:.1f}" for rows in counts)))
    print(markdown(("µs per decode step, by rows", *map(str, counts)), table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
