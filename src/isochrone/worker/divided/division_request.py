"""The request that the model of a division receives in place of the caller's; its answer goes to the runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from isochrone.clock import NEVER
from isochrone.errors import Cancelled, IsochroneError
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Plan

if TYPE_CHECKING:
    from isochrone.models.divisions import Division
    from isochrone.protocol.messages import Parameters, Tensors
    from isochrone.worker.served_version import ServedVersion

_MAX_PLANS = 64


class Answered(Protocol):
    """The runner of the divided model."""

    def division_done(self, request: DivisionRequest, outputs: Tensors, parameters: Parameters) -> None: ...

    def division_failed(self, request: DivisionRequest, error: IsochroneError) -> None: ...


class DivisionRequest(InferRequest):
    """One run of a caller's request in one division. Deadline, priority, id and parameters are the caller's."""

    __slots__ = (
        "_runner",
        "_trace_context",
        "given_up",
        "has_begun",
        "is_ordered",
        "losses",
        "original",
        "overdue_at",
        "run_in",
        "steps",
        "version",
    )

    def __init__(
        self,
        runner: Answered,
        original: InferRequest,
        division: Division,
        version: ServedVersion,
        now: int,
        trace_context: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(_plan(original.plan, version), original.id, original.inputs, now, original.deadline)
        self._runner = runner
        self.original = original
        #: That of the request's own span, if its model is traced.
        self._trace_context = trace_context
        self.run_in = division
        self.version = version
        #: Another run has taken its place: its answer is not used.
        self.given_up = False
        #: The caller orders this division: no other takes its place.
        self.is_ordered = False
        #: From then on, it runs on the edge instead if another division is the present one.
        self.overdue_at = NEVER
        #: Of an earlier run of the request: the connections that broke, and whether a part of it may have run.
        self.losses = 0
        self.has_begun = False
        #: (model, ns) of each step, if the division is an ensemble.
        self.steps: list[tuple[str, int]] = []

    @property
    def cancelled(self) -> bool:
        return self.given_up or self.original.cancelled

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        """Ignored: the caller and the runner decide."""

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self.original.stages

    @property
    def trace_context(self) -> Mapping[str, str] | None:
        return self.original.trace_context if self._trace_context is None else self._trace_context

    @property
    def division(self) -> str:
        return self.original.division

    @property
    def shares_inputs(self) -> bool:
        # After a failure the same inputs run on the edge.
        return self.run_in.uses_link or self.original.shares_inputs

    def shares_input(self, name: str) -> bool:
        return self.run_in.uses_link or self.original.shares_input(name)

    def keeps_on_device(self, output: str) -> bool:
        return self.original.keeps_on_device(output)

    @property
    def call_chain(self) -> tuple[Any, ...]:
        return self.original.call_chain

    def note_step(self, model: str, nanoseconds: int) -> None:
        self.steps.append((model, nanoseconds))
        self.original.note_step(model, nanoseconds)

    def endpoint(self) -> str:
        return self.original.endpoint()

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        self._runner.division_done(self, outputs, parameters)

    def fail(self, error: IsochroneError) -> None:
        self._runner.division_failed(self, error)

    def dropped(self) -> None:
        self._runner.division_failed(self, Cancelled("the caller has gone"))


def _plan(plan: Plan, version: ServedVersion) -> Plan:
    """The plan of the division's request, memoised on the plan of the caller's."""
    memo = plan.step_plans
    if memo is None:
        memo = plan.step_plans = {}
    known = memo.get(version)
    if known is None:
        if len(memo) >= _MAX_PLANS:
            memo.clear()
        known = memo[version] = Plan(
            version.model_name,
            version.model_version,
            plan.inputs,
            plan.outputs,
            plan.parameters,
            priority=plan.priority,
        )
    return known
