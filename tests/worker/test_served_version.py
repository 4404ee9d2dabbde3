"""A served version and the plans requests share: what one version found must not reach another's requests in flight."""

from __future__ import annotations

import pytest

from isochrone.protocol.messages import Plan
from isochrone.worker.served_version import ServedVersion

pytestmark = pytest.mark.interpreted


def version(in_flight: int) -> ServedVersion:
    served = ServedVersion.__new__(ServedVersion)
    served.in_flight = in_flight
    return served


class Signed:
    def check(self, inputs: object, outputs: object) -> int:
        return 3


def plan_checked_by(other: object) -> Plan:
    plan = Plan("m", "", (("x", "FP32", (3, 2)),), None)
    plan.checked_by = other
    plan.batch_size = 3
    return plan


def test_a_plan_in_use_by_another_version_is_copied() -> None:
    plan = plan_checked_by(version(in_flight=1))
    own = ServedVersion._own(plan)
    own.batch_size = 1
    assert plan.batch_size == 3
    assert own.inputs == plan.inputs


def test_a_plan_nobody_computes_by_is_taken_over() -> None:
    for other in (None, version(in_flight=0)):
        plan = plan_checked_by(other)
        assert ServedVersion._own(plan) is plan


def test_the_plans_of_steps_are_not_those_of_another_version_of_the_ensemble() -> None:
    """A reloaded ensemble may map other outputs of the same models."""
    plan = plan_checked_by(None)
    plan.step_plans = {"step of the version before": plan_checked_by(None)}
    served = ServedVersion.__new__(ServedVersion)
    served.batched = True
    served.signature = Signed()  # type: ignore[assignment]
    served._check(plan)
    assert plan.step_plans is None
