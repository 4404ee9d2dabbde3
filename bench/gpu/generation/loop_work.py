"""``python -m bench.gpu.generation.loop_work``: what the event loop does for each token of a stream, without sockets.

Responses as an engine makes them go through ``JobsUnderWay`` and OpenAI's front to an exchange that drops the
bytes: what is left is the time of the worker's own code. A socket adds the kernel's time for a write.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from types import SimpleNamespace
from typing import Any

from bench.gpu.figures import markdown
from isochrone.clock import now_ns
from isochrone.protocol.messages import Plan
from isochrone.protocol.openai.call import CompletionCall
from isochrone.protocol.openai.completions import ChoiceRequest, CompletionAnswer
from isochrone.protocol.openai.objects import AnswerForm
from isochrone.worker.backends.generative import Chosen
from isochrone.worker.generation.answers.job import Delivery, Job
from isochrone.worker.generation.answers.responses import Piece, response
from isochrone.worker.generation.jobs_under_way import JobsUnderWay
from isochrone.worker.generation.prompt_sizes import PromptSizes
from isochrone.worker.generation.prompts import PromptThread
from isochrone.worker.generation.refusals import RefusalCounts
from isochrone.worker.generation.requests.requests import GenerationRequest
from isochrone.worker.generation.requests.sampling import GenerationParameters
from isochrone.worker.statistics import ModelStatistics

_EXTRA = frozenset(("finish_reason", "num_input_tokens", "num_output_tokens"))


class Sink:
    """An exchange that counts the bytes of its answer."""

    is_congested = False
    on_writable = None
    owner: Any = None
    arrived = 1

    def __init__(self) -> None:
        self.size = 0

    def start(self, status: int, headers: Any) -> None:
        pass

    def write(self, parts: Any) -> None:
        self.size += sum(map(len, parts))


def stream(jobs: JobsUnderWay) -> Job:
    """One chat that streams."""
    exchange: Any = Sink()
    call = CompletionCall("writer", True, ("[]",), streams=True)
    service: Any = SimpleNamespace(model_digest=lambda *_: "0123456789abcdef")
    model: Any = SimpleNamespace(name="writer", version="")
    answer = CompletionAnswer(exchange, call, AnswerForm("writer", True), service, model)
    route: Any = None
    request = ChoiceRequest(answer, answer.choices[0], route, Plan("writer", "", (), None, {}), {})
    request.served_by = SimpleNamespace(model_version="1")
    job = Job(request, GenerationRequest(GenerationParameters(), "", None, True, False, _EXTRA), 1, 1)
    engine: Any = None
    jobs.begin(job, engine)
    return job


def measure(prompts: PromptThread, rows: int, steps: int) -> float:
    """µs per token, with so many streams in a step."""
    statistics = ModelStatistics("writer", "1")
    under_way = JobsUnderWay("writer", statistics, lambda: None, prompts, PromptSizes(), RefusalCounts())
    jobs = [stream(under_way) for _ in range(rows)]

    def deliveries(step: int) -> list[Delivery]:
        found = []
        for number, job in enumerate(jobs):
            piece = Piece(f" word{(step * rows + number) % 997}", [Chosen(5, -1.0)])
            outputs = response(job.wanted, piece, 100, -1.0, None, lambda _: "", None)
            found.append(Delivery(job, outputs, None, False))
        return found

    made = [deliveries(step) for step in range(steps)]
    gc.collect()
    gc.freeze()
    began = time.thread_time_ns()
    for each in made:
        under_way.take(each)
    took = time.thread_time_ns() - began
    gc.unfreeze()
    return took / steps / rows / 1e3


async def figures(rows: list[int], steps: int, rounds: int) -> list[float]:
    prompts = PromptThread("writer-prompts")
    try:
        return [min(measure(prompts, each, steps) for _ in range(rounds)) for each in rows]
    finally:
        prompts.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.generation.loop_work", description=__doc__)
    parser.add_argument("--rows", default="1,16,64")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rows = [int(each) for each in given.rows.split(",")]
    began = now_ns()
    found = asyncio.run(figures(rows, given.steps, given.rounds))
    print(markdown(("streams", *map(str, rows)), [("µs per token", *(f"{each:.1f}" for each in found))]))
    print(f"\n{(now_ns() - began) / 1e9:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
