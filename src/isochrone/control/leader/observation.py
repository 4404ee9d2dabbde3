"""Builds the observed state from the records, the workers' reports and the verdicts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from isochrone.control.rollout.observed_state import ObservedState, ObservedWorker, Verdict
from isochrone.control.state.assignment import NO_PLACEMENTS, Placements
from isochrone.control.state.records import EpochRecord
from isochrone.control.state.rollout_records import AcknowledgementRecord, RolloutRecord
from isochrone.control.state.view import View


class Verdicts(Protocol):
    """The verdicts of the evaluations, by rollout."""

    @property
    def compared(self) -> Mapping[str, Verdict]: ...

    @property
    def judged(self) -> Mapping[str, Verdict]: ...


def observe(
    view: View,
    workers: Mapping[str, ObservedWorker],
    found: Verdicts,
    stages: Mapping[str, tuple[str, ...]],
    switch_since: float,
    now: float,
    repositories: Mapping[str, tuple[str, ...]] | None = None,
    placements: Placements = NO_PLACEMENTS,
) -> ObservedState:
    keys = view.keys
    switch = view.switch
    acknowledgements: dict[str, AcknowledgementRecord] = {}
    if switch is not None:
        acknowledgements = view.under(keys.acknowledgement(switch.identity, ""), AcknowledgementRecord)
    drained = view.drains
    return ObservedState(
        now=now,
        epoch=view.epoch or EpochRecord(0),
        # A drained worker is about to stop: no rollout prepares it.
        workers={name: worker for name, worker in workers.items() if name not in drained},
        gateways=view.gateways,
        known_gateways=view.known_incarnations,
        epochs_seen=dict(view.epochs_seen.values()),
        xds_epochs={name: record.epoch for name, record in view.xds_servers.items()},
        switch=switch,
        switch_since=switch_since,
        acknowledgements=acknowledgements,
        rollouts=tuple(view.open_rollouts),
        compared=found.compared,
        judged=found.judged,
        stages=stages,
        repositories=repositories or {},
        placements=placements,
    )


def loading_order(epoch: EpochRecord, rollouts: Iterable[RolloutRecord]) -> list[str]:
    """All models, stages before the ensembles that run them."""
    stages: dict[str, set[str]] = {name: set(model.stages) for name, model in epoch.models.items()}
    for rollout in rollouts:
        for name, change in rollout.changes.items():
            stages.setdefault(name, set()).update(change.stages)
    order: list[str] = []

    def visit(name: str, above: frozenset[str]) -> None:
        if name in order or name in above:
            return
        for stage in sorted(stages.get(name, ())):
            visit(stage, above | {name})
        order.append(name)

    for name in sorted(stages):
        visit(name, frozenset())
    return order
