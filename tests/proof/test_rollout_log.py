"""Commits out of rollout records: in the order of their epochs, with the instants the driver saw."""

from __future__ import annotations

from typing import Any

from bench.control.checker import FAST, STRICT
from bench.control.rollout_log import RolloutLog


def _record(identity: str, state: str, epoch: int, changes: dict[str, str], **others: Any) -> dict[str, Any]:
    versions = {model: {"version": version} for model, version in changes.items()}
    return {"identity": identity, "state": state, "epoch": epoch, "changes": versions, **others}


def test_epochs_follow_each_other_and_what_was_aborted_is_none() -> None:
    log = RolloutLog(3, {"solo": "1", "chain": "1"})
    first, second, third = log.ask(100), log.ask(200), log.ask(300)
    first.see(_record("r1", "switching", 0, {"solo": "2"}), 110)
    first.see(_record("r1", "draining", 4, {"solo": "2"}), 120)
    first.see(_record("r1", "done", 4, {"solo": "2"}), 130)
    second.see(_record("r2", "aborted", 0, {"solo": "3"}), 220)
    third.see(_record("r3", "done", 5, {"chain": "2"}), 330)
    records = [
        _record("r3", "done", 5, {"chain": "2"}),
        _record("r0", "done", 3, {"solo": "1", "chain": "1"}, kind="first"),
        _record("r2", "aborted", 0, {"solo": "3"}),
        _record("r1", "done", 4, {"solo": "2"}, cutover="strict"),
    ]
    commits = log.commits(records)
    assert [(commit.epoch, dict(commit.versions), commit.cutover) for commit in commits] == [
        (3, {"solo": "1", "chain": "1"}, FAST),
        (4, {"solo": "2", "chain": "1"}, STRICT),
        (5, {"solo": "2", "chain": "2"}, FAST),
    ]
    assert [(commit.asked_ns, commit.settled_ns) for commit in commits] == [(0, None), (100, 120), (300, 330)]
    assert first.ended_ns == 130
    assert first.is_over


def test_a_canary_shows_both_versions_before_it_is_promoted_or_taken_back() -> None:
    log = RolloutLog(1, {"solo": "1"})
    records = [
        _record("r1", "done", 4, {"solo": "2"}, canary={"weights": [0.5]}),
        _record("r2", "aborted", 6, {"solo": "3"}, canary={"weights": [0.5]}),
    ]
    seen = [(commit.epoch, commit.versions["solo"], commit.canary.get("solo")) for commit in log.commits(records)]
    assert seen == [(1, "1", None), (3, "1", "2"), (4, "2", None), (5, "2", "3"), (6, "2", None)]
