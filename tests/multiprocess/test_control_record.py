"""The record of control calls: what a process gets that starts later is what the others have."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from isochrone.multiprocess.coordination.control_record import Change, Record, change_of

#: An ensemble e of the steps a and b; c stands alone.
MODELS = ("a", "b", "c", "e", "näme/with slash")
STEPS = {"e": ("a", "b")}
REGIONS = ("r", "s")


class Process:
    """What control calls do to a worker, in miniature."""

    def __init__(self, at_start: frozenset[str]) -> None:
        self.models: dict[str, Any] = {name: {} for name in sorted(at_start)}
        self.by_name = set(at_start)
        for name in at_start:
            self._load_steps(name)
        #: Regions of both kinds share their names.
        self.regions: dict[str, tuple[str, Any]] = {}
        self.trace: dict[str, dict[str, Any]] = {}
        self.log: dict[str, Any] = {}

    def _load_steps(self, name: str) -> None:
        for step in STEPS.get(name, ()):
            self.models.setdefault(step, {})

    @property
    def ready(self) -> frozenset[str]:
        return frozenset(self.models)

    def apply(self, change: Change) -> None:
        name, value = change.name, change.value
        match change.kind:
            case "load":
                self._load_steps(name)
                self.models[name] = value
                self.by_name.add(name)
            case "unload":
                was_ready = self.models.pop(name, None) is not None
                self.by_name.discard(name)
                if was_ready and value.get("parameters", {}).get("unload_dependents"):
                    for step in STEPS.get(name, ()):
                        if step not in self.by_name:
                            self.models.pop(step, None)
            case "register" | "register_cuda":
                assert name not in self.regions
                self.regions[name] = change.kind, value
            case "unregister" | "unregister_cuda":
                kind = change.kind.removeprefix("un")
                gone = [key for key, region in self.regions.items() if region[0] == kind and name in ("", key)]
                self.regions = {key: region for key, region in self.regions.items() if key not in gone}
            case "trace":
                settings = {**self.trace.get(name, {}), **value}
                self.trace[name] = {key: kept for key, kept in settings.items() if kept is not None}
            case "log":
                self.log |= value

    def named(self, kind: str) -> list[str]:
        return [name for name, region in self.regions.items() if region[0] == kind]

    def state(self) -> Any:
        return self.models, self.regions, {name: kept for name, kept in self.trace.items() if kept}, self.log


CONFIG = st.sampled_from([{}, {"parameters": {"config": "{}"}}, {"parameters": {"config": '{"max_batch_size": 2}'}}])
DEPENDENTS = st.sampled_from([{}, {"parameters": {"unload_dependents": True}}])
REGISTERING = st.sampled_from(("register", "register_cuda"))
UNREGISTERING = st.sampled_from(("unregister", "unregister_cuda"))
CHANGES = st.one_of(
    st.builds(Change, st.just("load"), st.sampled_from(MODELS), CONFIG),
    st.builds(Change, st.just("unload"), st.sampled_from(MODELS), DEPENDENTS),
    st.builds(Change, REGISTERING, st.sampled_from(REGIONS), st.fixed_dictionaries({"key": st.just("/k")})),
    st.builds(Change, UNREGISTERING, st.sampled_from((*REGIONS, "")), st.just({})),
    st.builds(
        Change,
        st.just("trace"),
        st.sampled_from(("", "a")),
        st.dictionaries(st.sampled_from(("trace_rate", "trace_count")), st.sampled_from([None, ["1"], ["2"]])),
    ),
    st.builds(
        Change, st.just("log"), st.just(""), st.dictionaries(st.sampled_from(("log_info",)), st.booleans(), min_size=1)
    ),
)
AT_START = st.frozensets(st.sampled_from(("a", "c", "e")))


def _history(at_start: frozenset[str], changes: list[Change]) -> tuple[Process, Record]:
    process, record = Process(at_start), Record()
    for change in changes:
        if change.kind.startswith("register") and change.name in process.regions:
            continue
        before = process.ready
        process.apply(change)
        record = record.applied(change, before, process.ready)
    return process, record


@given(AT_START, st.lists(CHANGES, max_size=12))
def test_a_process_that_starts_later_becomes_as_the_others_are(at_start: frozenset[str], changes: list[Change]) -> None:
    old, record = _history(at_start, changes)
    new = Process(at_start)
    for change in record.replay(new.ready, new.named("register"), new.named("register_cuda")):
        new.apply(change)
    assert new.state() == old.state()
    # Once more: a coordinator that ended in the middle of a replay starts it again.
    for change in record.replay(new.ready, new.named("register"), new.named("register_cuda")):
        new.apply(change)
    assert new.state() == old.state()


@given(AT_START, st.lists(CHANGES, max_size=12))
def test_it_is_the_same_after_it_was_written_and_read(at_start: frozenset[str], changes: list[Change]) -> None:
    _, record = _history(at_start, changes)
    begun = record.begun(Change("load", "a", {}), {1: {"c"}, 2: set()})
    for each in (record, begun):
        assert msgspec.json.decode(msgspec.json.encode(each), type=Record) == each
    assert begun.ended() == record


@given(AT_START, st.lists(CHANGES, max_size=40))
def test_it_does_not_grow_with_the_number_of_calls(at_start: frozenset[str], changes: list[Change]) -> None:
    _, record = _history(at_start, changes)
    assert len(record.replay()) <= len(MODELS) + len(REGIONS) + 2 + 1


@given(AT_START, st.lists(CHANGES, max_size=6), CHANGES)
def test_undoing_restores_what_was_there(at_start: frozenset[str], changes: list[Change], change: Change) -> None:
    process, record = _history(at_start, changes)
    state, ready = copy.deepcopy(process.state()), process.ready
    if not change.kind.startswith("register") or change.name not in process.regions:
        process.apply(change)
    undo = record.undo(change, ready)
    if undo is None and change.kind in ("trace", "log"):
        return
    for each in undo or ():
        process.apply(each)
    for each in record.restore(ready, process.ready) if change.changes_models else ():
        process.apply(each)
    assert process.state() == state


@given(
    st.lists(CHANGES, max_size=6),
    st.builds(Change, REGISTERING, st.sampled_from(REGIONS), st.just({"key": "/other"})),
    st.builds(Change, UNREGISTERING, st.sampled_from((*REGIONS, "")), st.just({})),
    st.booleans(),
)
def test_regions_are_as_before_whether_a_change_was_made_or_not(
    changes: list[Change], registering: Change, unregistering: Change, is_made: bool
) -> None:
    """The coordinator ended during the call: its successor does not know where it was made."""
    for change in (registering, unregistering):
        process, record = _history(frozenset(), changes)
        before = copy.deepcopy(process.regions)
        if is_made and (change is unregistering or change.name not in process.regions):
            process.apply(change)
        for each in record.undo(change, ()) or ():
            process.apply(each)
        assert process.regions == before


@given(CHANGES)
def test_a_call_is_found_again_by_its_path(change: Change) -> None:
    assert change_of(change.target, change.value) == change


def test_calls_that_change_nothing_are_no_changes() -> None:
    for target in ("/v2/models/m/infer", "/v2/repository/index", "/v2/models/stats", "/join/1"):
        assert change_of(target, {}) is None
