"""Lines for people: each event once."""

from __future__ import annotations

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import Assignment, EpochRecord, Split
from isochrone.control.state.rollout_records import Change, RolloutRecord
from isochrone.control.state.view import View
from isochrone.engines.base import Exit
from isochrone.engines.supervision.progress import Progress, exit_lines
from isochrone.engines.supervision.reconcile import Observed
from isochrone.store.base import Entry

KEYS = Keys("plant")
WORKER = ProcessSpec("cpu-1", "worker", ("serve",), "cpu")


def view(epoch: EpochRecord | None = None, *rollouts: RolloutRecord) -> View:
    entries = {} if epoch is None else {KEYS.epoch: encode(epoch)}
    entries |= {KEYS.rollout(each.identity): encode(each) for each in rollouts}
    return View(KEYS, {key: Entry(key, value, 1) for key, value in entries.items()})


def epoch(number: int, **versions: str) -> EpochRecord:
    return EpochRecord(number, {name: Assignment(version) for name, version in versions.items()})


def test_readiness_is_told_once_and_again_after_a_death() -> None:
    progress = Progress(view())
    up, down = {"cpu-1": Observed(WORKER, ready=True)}, {"cpu-1": Observed(WORKER)}
    reported = [progress.lines(view(), each) for each in (down, up, up, down, up)]
    assert reported == [[], ["worker cpu-1 ready"], [], [], ["worker cpu-1 ready"]]


def test_commits_tell_what_changed() -> None:
    progress = Progress(view())
    assert progress.lines(view(epoch(1, a="1", b="1")), {}) == ["models committed: epoch 1 (a 1, b 1)"]
    assert progress.lines(view(epoch(1, a="1", b="1")), {}) == []
    assert progress.lines(view(epoch(2, a="1", b="2")), {}) == ["models committed: epoch 2 (b 2)"]
    split = EpochRecord(3, {"a": Assignment("1", canary=Split("2", weight=0.25))})
    assert progress.lines(view(split), {}) == ["models committed: epoch 3 (a 1 with 25% on 2, b no longer)"]
    assert progress.lines(view(EpochRecord(4, split.models)), {}) == ["models committed: epoch 4 (nothing changed)"]


def test_many_models_do_not_fill_the_screen() -> None:
    progress = Progress(view())
    (line,) = progress.lines(view(epoch(1, **{f"m{number}": "1" for number in range(9)})), {})
    assert line.endswith("m5 1 and 3 more)")


def test_what_happened_before_is_no_news() -> None:
    old = RolloutRecord("r1", {"a": Change("2")}, "aborted", reason="old")
    new = RolloutRecord("r2", {"a": Change("2")}, "aborted", reason="digests differ")
    progress = Progress(view(epoch(3, a="1"), old))
    assert progress.lines(view(epoch(3, a="1"), old), {}) == []
    assert progress.lines(view(epoch(3, a="1"), old, new), {}) == ["rollout r2 aborted: digests differ"]
    assert progress.lines(view(epoch(3, a="1"), old, new), {}) == []


def test_a_death_is_told_with_the_end_of_the_log() -> None:
    assert exit_lines(Exit(WORKER, 7, -9, 0.1), "x.log", ["boom"]) == [
        "worker cpu-1 was ended by signal 9; starting it again in 0.1 s; log: x.log",
        "  | boom",
    ]
    assert exit_lines(Exit(WORKER, 7, 0, None), "x.log", ["boom"]) == []
