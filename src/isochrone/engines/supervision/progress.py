"""The lines that a user at the terminal sees while a fleet starts and changes, one per event. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.process_records import ProcessRecord
from isochrone.control.state.records import EpochRecord, Fault
from isochrone.control.state.rollout_records import ABORTED
from isochrone.control.state.view import View
from isochrone.engines.base import Exit
from isochrone.engines.supervision.reconcile import Observed

#: Seconds until a line says what a fleet waits for, and between two such lines.
WAIT_SECONDS = 5.0


class Progress:
    """The events since the last call."""

    def __init__(self, view: View) -> None:
        """What is in the store already causes no line."""
        self._epoch = view.epoch
        self._aborted = {record.identity for record in view.rollouts if record.state == ABORTED}
        self._ready: set[str] = set()
        self._faults: set[Fault] = set()
        #: By process: why it has no machine yet.
        self._waits: dict[str, str] = {}

    def lines(self, view: View, observed: Mapping[str, Observed]) -> list[str]:
        """What is new since the last call."""
        ready = {name for name, each in observed.items() if each.ready}
        lines = [f"{observed[name].spec.role} {name} ready" for name in sorted(ready - self._ready)]
        # A process that died has a line for its exit, and one when it is ready again.
        self._ready = ready
        waits = {name: each.waits for name, each in observed.items() if each.waits}
        lines += [
            f"{observed[name].spec.role} {name} waits: {reason}"
            for name, reason in sorted(waits.items())
            if self._waits.get(name) != reason
        ]
        self._waits = waits
        faults = set(view.faults())
        lines += [
            f"the record {fault.key} cannot be read and is skipped: {fault.reason}"
            for fault in sorted(faults - self._faults, key=lambda each: each.key)
        ]
        self._faults = faults
        for record in view.rollouts:
            if record.state == ABORTED and record.identity not in self._aborted:
                self._aborted.add(record.identity)
                lines.append(f"rollout {record.identity} aborted: {record.reason}")
        epoch = view.epoch
        if epoch is not None and (self._epoch is None or epoch.epoch != self._epoch.epoch):
            lines.append(f"models committed: epoch {epoch.epoch} ({_versions(epoch, self._epoch)})")
            self._epoch = epoch
        return lines


class Waiting:
    """What a starting fleet waits for: a line after a while, and again when it changes."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._said = ""

    def line(
        self,
        view: View,
        desired: Mapping[str, ProcessSpec],
        observed: Mapping[str, Observed],
        dead: Mapping[str, ProcessRecord],
        now: float,
    ) -> str:
        """ "": no line is due. ``dead``: processes that died and do not serve yet."""
        reasons = _reasons(view, desired, observed, dead)
        said = "; ".join(reasons[:4]) + (f"; and {len(reasons) - 4} more" if len(reasons) > 4 else "")
        if not reasons or said == self._said or now - self._since < WAIT_SECONDS:
            return ""
        self._since, self._said = now, said
        return f"waiting for {said}"


def _reasons(
    view: View,
    desired: Mapping[str, ProcessSpec],
    observed: Mapping[str, Observed],
    dead: Mapping[str, ProcessRecord],
) -> list[str]:
    reasons = []
    for name, spec in desired.items():
        if name not in observed or not observed[name].ready:
            record = dead.get(name)
            why = f", which {record.how}: {record.error or 'see its log'}" if record is not None else ""
            if name in observed and observed[name].waits:
                why = f" ({observed[name].waits})"
            reasons.append(f"{spec.role} {name}{why}")
    for rollout in view.open_rollouts:
        loading = [f"{name} {each.detail}".strip() for name, each in rollout.workers.items() if each.state != "ready"]
        detail = rollout.note or ", ".join(loading)
        reasons.append(f"rollout {rollout.identity} ({rollout.state}{f': {detail}' if detail else ''})")
    if view.epoch is None and not view.open_rollouts:
        reasons.append("the first models to be committed")
    unserved = {model: why for gateway in view.gateways.values() for model, why in gateway.unserved.items()}
    return reasons + [f"model {model}: {why}" for model, why in sorted(unserved.items())]


def _versions(epoch: EpochRecord, before: EpochRecord | None) -> str:
    """The versions that it changed; of the first epoch, all."""
    old = before.models if before is not None else {}
    changed = {name: model for name, model in sorted(epoch.models.items()) if model != old.get(name)}
    words = []
    for name, model in changed.items():
        split = f" with {model.canary.weight:.0%} on {model.canary.version}" if model.canary is not None else ""
        words.append(f"{name} {model.version}{split}")
    words += [f"{name} no longer" for name in sorted(old) if name not in epoch.models]
    return ", ".join(words[:6]) + (f" and {len(words) - 6} more" if len(words) > 6 else "") or "nothing changed"


def exit_lines(ended: Exit, log: str, last: Iterable[str]) -> list[str]:
    """The lines for a process that died."""
    if ended.again_in is None:
        return []
    spec = ended.spec
    return [
        f"{spec.role} {spec.name} {ended.how}; starting it again in {ended.again_in:g} s; log: {log}",
        *(f"  | {line}" for line in last),
    ]
