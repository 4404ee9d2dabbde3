"""The driver's record of rollouts and their commits: one of the two inputs of the checker.

An epoch is taken from the rollout's own record; when it was asked for and when it was known done, from the driver's
clock, which is also the clients'. Pure: records and instants in, commits out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.control.checker import Commit
from bench.control.control_api import COMMITTED, OVER


@dataclass
class Asked:
    """One rollout, from its request on."""

    asked_ns: int
    identity: str = ""
    #: When each state was first seen.
    seen_ns: dict[str, int] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)

    def see(self, record: Mapping[str, Any], now_ns: int) -> None:
        self.identity = str(record["identity"])
        self.record = record
        self.seen_ns.setdefault(str(record["state"]), now_ns)

    @property
    def state(self) -> str:
        return str(self.record.get("state", ""))

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def ended_ns(self) -> int | None:
        return next((at for state, at in self.seen_ns.items() if state in OVER), None)

    @property
    def settled_ns(self) -> int | None:
        """From when on its commit was known to be written."""
        return min((at for state, at in self.seen_ns.items() if state in COMMITTED), default=None)


@dataclass
class RolloutLog:
    """All rollouts of a run, and the versions served when it began."""

    first_epoch: int
    first_versions: Mapping[str, str]
    asked: list[Asked] = field(default_factory=list)

    def ask(self, now_ns: int) -> Asked:
        """A rollout is about to be requested."""
        self.asked.append(Asked(now_ns))
        return self.asked[-1]

    def commits(self, records: Sequence[Mapping[str, Any]]) -> list[Commit]:
        """All epochs since the run began, from the fleet's own list of rollouts."""
        known = {asked.identity: asked for asked in self.asked if asked.identity}
        unknown_ns = min((asked.asked_ns for asked in self.asked), default=0)
        commits = [Commit(self.first_epoch, dict(self.first_versions))]
        versions = dict(self.first_versions)
        for record in sorted(records, key=lambda one: int(one.get("epoch", 0))):
            epoch = int(record.get("epoch", 0))
            if epoch <= self.first_epoch:
                continue  # committed nothing, or before the run
            asked = known.get(str(record["identity"]))
            asked_ns = asked.asked_ns if asked is not None else unknown_ns
            changes = {model: str(change["version"]) for model, change in record["changes"].items()}
            if record.get("canary"):
                # The last of its steps; those before it show the same versions to fewer.
                commits.append(Commit(epoch - 1, dict(versions), canary=changes, asked_ns=asked_ns))
            is_aborted = record["state"] in ("aborting", "aborted")
            versions = versions if is_aborted else {**versions, **changes}
            commits.append(
                Commit(
                    epoch,
                    dict(versions),
                    str(record.get("cutover", "fast")),
                    asked_ns=asked_ns,
                    settled_ns=asked.settled_ns if asked is not None else None,
                )
            )
        return commits
