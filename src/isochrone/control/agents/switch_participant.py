"""The gateway's role in a strict switch: when it holds requests, acknowledges a phase, and releases. Pure.

It observes the switch record and the epoch that is served here after every change. Several changes may arrive at once,
so one switch may be over and the next in progress between two observations: requests are held for one switch by name,
and never count for another.
"""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.control.state.rollout_records import CANCELLED, HOLDING, SwitchRecord


@dataclass(frozen=True, slots=True)
class Actions:
    """What to do now, in this order: release, hold these models, acknowledge the phase."""

    release: bool = False
    hold: tuple[str, ...] = ()
    acknowledge: bool = False


class SwitchParticipant:
    def __init__(self) -> None:
        #: The switch that requests are held for; "": none.
        self.held_for = ""
        #: The switch and phase last acknowledged, or about to be.
        self._acknowledged = ("", "")

    def observe(self, switch: SwitchRecord | None, epoch: int) -> Actions:
        """``epoch``: the one that is served here."""
        if switch is not None and (switch.phase == CANCELLED or switch.epoch < epoch):
            switch = None
        release = bool(self.held_for) and (
            switch is None or switch.identity != self.held_for or switch.phase != HOLDING
        )
        if release:
            self.held_for = ""
        if switch is None:
            return Actions(release)
        hold: tuple[str, ...] = ()
        if switch.phase == HOLDING and not self.held_for:
            self.held_for = switch.identity
            hold = switch.models
        acknowledge = self._acknowledged != (switch.identity, switch.phase)
        self._acknowledged = (switch.identity, switch.phase)
        return Actions(release, hold, acknowledge)

    def acknowledgement_failed(self, switch: SwitchRecord) -> None:
        """It could not be written: it is due again if the switch still stands."""
        if self._acknowledged == (switch.identity, switch.phase):
            self._acknowledged = ("", "")
