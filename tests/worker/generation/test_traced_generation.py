"""The steps that generate an answer, in its trace: as many spans as are useful, however long the answer is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from toy_model import ToyModel
from toy_runner import Bench, run, until

from isochrone.clock import now_ns
from isochrone.observe.tracing.record import TraceQueue
from isochrone.observe.tracing.spans import Span, spans_of
from isochrone.observe.tracing.tail_sampling import TraceShare
from isochrone.worker.generation.answers.traced_steps import MOST_STEPS, TracedSteps
from isochrone.worker.tracing.model_trace import ModelTrace


@given(st.integers(0, 500))
def test_no_step_is_lost_and_entries_are_bounded(count: int) -> None:
    steps = TracedSteps()
    for number in range(count):
        steps.add(number * 10, number * 10 + 9, 1, not number, 3)
    assert len(steps.entries) == min(count, MOST_STEPS)
    assert sum(tokens for _, _, tokens, _, _, _ in steps.entries) == count
    assert sum(each[5] for each in steps.entries) == count
    assert not steps.entries or steps.entries[-1][1] == count * 10 - 1


def test_prefill_and_decode_are_spans_below_compute() -> None:
    async def scenario() -> None:
        bench = Bench(ToyModel())
        queue = TraceQueue(10)
        bench.statistics.trace = ModelTrace(TraceShare(1, -1), queue, now_ns())
        request = bench.send("hello", max_tokens=100)
        await until(lambda: request.is_over)
        await until(lambda: not bench.blocks_in_use)
        bench.close()
        numbers = iter(range(1, 1000))
        (record,) = queue.take(10)
        spans: list[Span] = list(spans_of(record, 0, lambda: next(numbers)))
        (compute,) = [each for each in spans if each.name == "compute"]
        steps = [each for each in spans if each.name in ("prefill", "decode")]
        assert len(steps) == MOST_STEPS
        assert steps[0].name == "prefill"
        assert {each.name for each in steps[1:]} == {"decode"}
        assert {each.parent_id for each in steps} == {compute.span_id}
        assert steps[0].attributes["isochrone.tokens"] == len("hello")
        # The first token comes with the prompt; one more may be computed in vain.
        decoded = sum(int(each.attributes["isochrone.tokens"]) for each in steps[1:])
        assert decoded in (99, 100)

    run(scenario)
