"""Evaluations while gateways do not answer: the verdict names the gateways whose part is missing.

No gateway here has a metrics page, so nothing is asked over a network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from isochrone.control.evaluation.evaluator import Evaluator
from isochrone.control.rollout.decision import Decision
from isochrone.control.rollout.observed_state import ObservedState, Verdict
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import EpochRecord
from isochrone.control.state.rollout_records import CanaryRule, Change, CompareRule, RolloutRecord

CHANGES = {"m": Change("2", "1", pools=("cpu",)), "moved": Change("1", "1", pools=("gpu",))}
GATEWAYS = {name: GatewayRecord(name, "127.0.0.1", 1, metrics_port=0) for name in ("b", "a")}


def first_verdict(decision: Decision, verdicts: Callable[[Evaluator], dict[str, Verdict]]) -> Verdict:
    async def play() -> Verdict:
        said = asyncio.Event()
        evaluator = Evaluator(said.set)
        try:
            evaluator.update(decision, ObservedState(0.0, EpochRecord(1), gateways=GATEWAYS))
            async with asyncio.timeout(100):
                await said.wait()
            return verdicts(evaluator)["r1"]
        finally:
            await evaluator.stop()

    return asyncio.run(play())


def test_a_canary_says_which_gateways_do_not_count() -> None:
    record = RolloutRecord("r1", CHANGES, canary=CanaryRule())
    verdict = first_verdict(Decision(record, observes=True), lambda evaluator: evaluator.judged)
    assert verdict.kind == "wait"
    assert verdict.reason.endswith("; no counts from gateway a, b, whose metrics page does not answer")
    assert "moved" not in verdict.reason, "one that only moves is not tried"


def test_a_comparison_says_which_gateways_give_no_samples() -> None:
    record = RolloutRecord("r1", CHANGES, compare=CompareRule(samples=5))
    verdict = first_verdict(Decision(record, compares=True), lambda evaluator: evaluator.compared)
    missing = "no samples from gateway a, b, whose metrics page does not answer"
    assert verdict == Verdict("wait", f"m: 0 of 5 requests gathered; {missing}")


def test_a_comparison_that_got_too_few_says_so_too() -> None:
    record = RolloutRecord("r1", CHANGES, compare=CompareRule(samples=5, timeout=0.0))
    verdict = first_verdict(Decision(record, compares=True), lambda evaluator: evaluator.compared)
    assert verdict.kind == "stop"
    assert verdict.reason.startswith("m: 5 requests were to be compared, 0 came in 0 s; no samples from gateway a, b")
