"""Records good and bad requests of each model once a minute, so that error budgets survive the controllers.

A controller collects figures whether it leads or not: one that takes over records the minutes since the last record
from its own history. If no other controller was there, up to a minute is lost.
"""

from __future__ import annotations

from typing import Final

from isochrone.control.figures.frames import OTHER_MODELS
from isochrone.control.figures.history import History
from isochrone.control.figures.objectives import Limits, limits
from isochrone.control.figures.totals import DAY, MOST_MODELS, totals_by_minute, until, with_minutes
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.leader.records import LeaderRecords
from isochrone.control.state.codec import encode
from isochrone.control.state.view import View
from isochrone.store.base import Delete, Put

#: Writes in one transaction, which etcd limits to 128.
_AT_ONCE: Final = 64


class SloTotals:
    """Of one fleet. ``history``: this controller's."""

    def __init__(self, records: LeaderRecords, history: History) -> None:
        self._records = records
        self._keys = records.keys
        self._history = history
        #: The minute under way when totals were recorded last; 0: not yet by this leader.
        self._minute = 0
        self._limits: tuple[int, Limits] = (0, Limits())

    def stop(self) -> None:
        """This controller does not lead any more."""
        self._minute = 0

    async def reconcile(self, view: View) -> None:
        """Record the minutes that are over and not recorded yet. Most calls do nothing."""
        latest = self._history.latest()
        if latest is None or (minute := latest.at // 60) == self._minute:
            return
        operations = self._operations(view, minute)
        for start in range(0, len(operations), _AT_ONCE):
            await self._records.write((), operations[start : start + _AT_ONCE], durable=False)
        self._minute = minute

    def _operations(self, view: View, minute: int) -> list[Put | Delete]:
        known, of = view.slo_totals, self._limits_of(view)
        whole = [frame for frame in self._history.budget_frames() if frame.at // 60 < minute]
        if self._minute:
            whole = [frame for frame in whole if frame.at // 60 >= self._minute]
        operations: list[Put | Delete] = []
        free = MOST_MODELS - len(known)
        names = {model for frame in whole for model, _ in frame.models} - {OTHER_MODELS}
        # Models of fleet.yaml first: others are not missed as much.
        for model in sorted(names, key=lambda name: (name not in of.models, name)):
            recorded = record = known.get(model)
            if recorded is None and free <= 0:
                continue
            if recorded is not None and recorded.minute >= minute:
                # A minute that is not over was recorded by another clock: this controller's own minutes replace it.
                record = until(recorded, whole[0].at // 60 - 1)
            later = [frame for frame in whole if record is None or frame.at // 60 > record.minute]
            changed = with_minutes(record, totals_by_minute(later, model, of.of(model)))
            if changed is not None and changed != recorded:
                free -= recorded is None
                operations.append(Put(self._keys.slo_totals_of(model), encode(changed)))
        operations += [
            Delete(self._keys.slo_totals_of(model)) for model, record in known.items() if minute - record.minute > DAY
        ]
        return operations

    def _limits_of(self, view: View) -> Limits:
        fleet = view.fleet
        if fleet is not None and self._limits[0] != fleet.generation:
            self._limits = fleet.generation, limits(fleet_of(fleet.spec))
        return self._limits[1]
