"""One gateway's part in strict switches: what it holds, what it says, when it lets go. Pure.

It is shown the switch as the store has it, and the epoch that is served here, after every change. Changes may come
several at once, so a switch may be over and the next one under way between two looks: what is held is held for one
switch by name, and never counts for another.
"""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.control.state.records import CANCELLED, HOLDING, SwitchRecord


@dataclass(frozen=True, slots=True)
class Act:
    """What to do now, in this order: let go, hold these, and then say so."""

    release: bool = False
    hold: tuple[str, ...] = ()
    says: bool = False


class SwitchPart:
    """What is held and what was said."""

    def __init__(self) -> None:
        #: The switch that requests are held for; "": none are.
        self.held_for = ""
        #: The switch and phase that were last acknowledged, or are being.
        self._said = ("", "")

    def see(self, switch: SwitchRecord | None, epoch: int) -> Act:
        """``epoch``: the one that is served here."""
        if switch is not None and (switch.phase == CANCELLED or switch.epoch < epoch):
            switch = None
        release = bool(self.held_for) and (
            switch is None or switch.identity != self.held_for or switch.phase != HOLDING
        )
        if release:
            self.held_for = ""
        if switch is None:
            return Act(release)
        hold: tuple[str, ...] = ()
        if switch.phase == HOLDING and not self.held_for:
            self.held_for = switch.identity
            hold = switch.models
        says = self._said != (switch.identity, switch.phase)
        self._said = (switch.identity, switch.phase)
        return Act(release, hold, says)

    def unsaid(self, switch: SwitchRecord) -> None:
        """The acknowledgement could not be written: it is still to be said, if the switch still stands."""
        if self._said == (switch.identity, switch.phase):
            self._said = ("", "")
