"""Turns the gateways' reports about workers into events: one per worker and change, however many gateways report it.
Pure.

There is an event when a registered worker gets no requests (it does not answer, another server answers on its port, it
is ejected as an outlier), one for each further reason (first nobody answers on its port, then another server does), and
one when it gets requests again. A worker that drains or has left causes none. What workers cannot load is kept in a
record of its own, which status shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from isochrone.control.rollout.observed_state import Failure, ObservedWorker
from isochrone.control.state.records import EventRecord
from isochrone.control.state.view import View

_GATEWAYS = "gateways"
#: Of one worker, until it gets requests again: reasons whose words vary must not fill the record of events.
_REASONS = 4


def worker_faults(view: View) -> dict[str, str]:
    """By name: registered workers that some gateway sends no requests to, and why."""
    found = {}
    for name, record in view.workers.items():
        if view.holds(view.keys.drain(name)) or view.holds(view.keys.standby(name)):
            continue
        for gateway in view.gateways.values():
            if record.address in gateway.workers:
                found[name] = gateway.workers[record.address]
                break
    return found


def load_failures(failures: Mapping[str, Mapping[str, Failure]]) -> dict[str, dict[str, str]]:
    """By worker, by model, for people: the versions that could not be loaded, and why."""
    return {
        worker: {model: f"version {', '.join(sorted(each.versions))}: {each.reason}" for model, each in of.items()}
        for worker, of in failures.items()
        if of
    }


def signers(workers: Iterable[ObservedWorker]) -> dict[str, dict[str, str]] | None:
    """By model, by version that is ready: who signed it, as workers verified it. None: not all have reported yet."""
    found: dict[str, dict[str, set[str]]] = {}
    for worker in workers:
        if worker.models is None:
            return None
        for model in worker.models:
            for version, loaded in worker.ready(model).items():
                if loaded.signed_by:
                    found.setdefault(model, {}).setdefault(version, set()).add(loaded.signed_by)
    return {
        model: {version: "; ".join(sorted(each)) for version, each in sorted(versions.items())}
        for model, versions in sorted(found.items())
    }


def changes(
    reported: Mapping[str, Sequence[str]], faults: Mapping[str, str], view: View, now: float
) -> tuple[list[EventRecord], dict[str, list[str]]]:
    """The events that are due, and the reasons reported with them; ``reported``: by worker, those reported before."""
    events = []
    after = {name: list(reported.get(name, ())) for name in faults}
    for name, reason in sorted(faults.items()):
        if reason not in after[name] and len(after[name]) < _REASONS:
            after[name].append(reason)
            events.append(EventRecord(now, _GATEWAYS, "worker gets no requests", name, reason))
    events += [
        EventRecord(now, _GATEWAYS, "worker gets requests again", name)
        for name in sorted(reported)
        if name not in faults and name in view.workers
    ]
    return events, after
