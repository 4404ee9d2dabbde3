"""Wait for the rollouts that an applied fleet.yaml starts: its versions are served when they are done.

The leading controller starts them shortly after the file is applied; every controller reports their progress.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console

from isochrone.cli.api_client import ApiClient, ApiFailed
from isochrone.cli.rollouts.watching import watch_rollout
from isochrone.control.api.messages import PlanAnswer, Rollouts, Status
from isochrone.control.desired.reconcile import FILE
from isochrone.control.state.rollout_records import RolloutRecord

#: Seconds that a fleet may be without a leader: the lease, and the time of another controller to take over.
_LEADER_SECONDS = 20.0
_PAUSE = 0.2


def starts_rollouts(plan: PlanAnswer) -> bool:
    return any(step.action == "rollout" for step in plan.steps)


def wait_for_rollouts(
    client: ApiClient, generation: int, before: Iterable[str], console: Console, *, quiet: bool = False
) -> list[RolloutRecord]:
    """The rollouts of a generation, when all are over. ``before``: the rollouts that existed when it was applied."""
    _wait_until_followed(client, generation, console, quiet)
    known = set(before)
    found = [
        each
        for each in client.get("/v1/rollouts", Rollouts).rollouts
        if each.by == FILE and (each.identity not in known or not each.is_over)
    ]
    return [watch_rollout(client, each.identity, console, quiet=quiet) for each in found]


def _wait_until_followed(client: ApiClient, generation: int, console: Console, quiet: bool) -> None:
    said = ""
    led_at = time.monotonic()
    while True:
        status = client.get("/v1/status", Status)
        if status.followed >= generation:
            return
        if status.leader:
            led_at = time.monotonic()
        elif time.monotonic() - led_at > _LEADER_SECONDS:
            raise ApiFailed(
                f"generation {generation} is applied, but no controller leads, so its rollouts do not start; start one "
                "with 'isochrone control', or look at 'isochrone logs'"
            )
        note = _waits_for(status)
        if note and note != said and not quiet:
            said = note
            console.print(note, markup=False, soft_wrap=True)
        time.sleep(_PAUSE)


def _waits_for(status: Status) -> str:
    if not status.leader:
        return "waiting for a controller to lead"
    if status.rollouts:
        return f"waiting for rollout {', '.join(each.identity for each in status.rollouts)} to end"
    return ""
