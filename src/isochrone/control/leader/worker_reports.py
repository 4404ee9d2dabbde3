"""Turns the gateways' reports about workers into events: one per worker and change, however many gateways report it.
Pure.

There is an event when a registered worker gets no requests (it does not answer, another server answers on its port, it
is ejected as an outlier), and another when it gets requests again. A worker that drains or has left causes none.
"""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.control.state.records import EventRecord
from isochrone.control.state.view import View

_GATEWAYS = "gateways"


def worker_faults(view: View) -> dict[str, str]:
    """By name: registered workers that some gateway sends no requests to, and why."""
    drains = view.entries
    found = {}
    for name, record in view.workers.items():
        if view.keys.drain(name) in drains:
            continue
        for gateway in view.gateways.values():
            if record.address in gateway.workers:
                found[name] = gateway.workers[record.address]
                break
    return found


def changes(before: Mapping[str, str], after: Mapping[str, str], view: View, now: float) -> list[EventRecord]:
    """The events for the difference between two reports."""
    events = [
        EventRecord(now, _GATEWAYS, "worker gets no requests", name, reason)
        for name, reason in sorted(after.items())
        if name not in before
    ]
    events += [
        EventRecord(now, _GATEWAYS, "worker gets requests again", name)
        for name in sorted(before)
        if name not in after and name in view.workers
    ]
    return events
