"""Builds the observed state of processes from the store and the engine. Pure.

A process is ready if its registered record has its present pid: a record of the process before it, whose lease has not
expired yet, does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from isochrone.control.state.view import View
from isochrone.engines.base import Running
from isochrone.engines.supervision.reconcile import Observed


def observe(
    view: View,
    running: Mapping[str, Running],
    drained_since: Mapping[str, float],
    idle: Collection[str],
    answering: Mapping[str, int],
    behind: Collection[str] = (),
    fresh: Collection[str] = (),
    lost: Collection[str] = (),
) -> dict[str, Observed]:
    """``answering``: by controller, the pid that was seen to answer; controllers have no record.

    ``behind``: processes that do not serve the committed versions yet; ``fresh``: those that started to a moment ago;
    ``lost``: those that give no sign of life.
    """
    pids = {name: record.pid for name, record in view.workers.items()}
    pids |= {name: record.pid for name, record in view.gateways.items()}
    return {
        name: Observed(
            each.spec,
            name not in behind
            and _is_ready(each, answering.get(name, -1) if each.spec.role == "controller" else pids.get(name, -1)),
            each.stopping,
            drained_since.get(name),
            name in idle,
            name not in fresh,
            name in lost,
            each.waits,
        )
        for name, each in running.items()
    }


def is_heard_of(name: str, each: Running, view: View) -> bool:
    """Whether the engine or the store has news of a process.

    A gateway that has not deregistered may still answer requests, with versions that a strict switch has replaced: only
    the engine may say that it is gone.
    """
    if each.reachable or each.stopping:
        return True
    return name in (view.known_gateways if each.spec.role == "gateway" else view.workers)


def _is_ready(each: Running, pid: int) -> bool:
    return each.pid > 0 and pid == each.pid
