"""What is started, drained and stopped: single decisions, and whole ways from one fleet to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.engines.supervision.reconcile import (
    DRAIN_SECONDS,
    HEARD_SECONDS,
    Action,
    Drain,
    Observed,
    Replace,
    Start,
    Stop,
    Undrain,
    decide,
    stopping_order,
)

Role = Literal["controller", "gateway", "worker"]


def spec(name: str, role: Role = "worker", mark: str = "", pool: str = "cpu", port: int = 0) -> ProcessSpec:
    """``mark`` makes specs of one name differ."""
    return ProcessSpec(name, role, ("x", "--listen", f"h:{port}", mark), pool if role == "worker" else "")


def fleet(*specs: ProcessSpec) -> dict[str, ProcessSpec]:
    return {each.name: each for each in specs}


def ready(*specs: ProcessSpec) -> dict[str, Observed]:
    return {each.name: Observed(each, ready=True) for each in specs}


# Single decisions.


def test_controllers_are_started_first_and_all_the_rest_with_them() -> None:
    desired = fleet(spec("g", "gateway"), spec("w2"), spec("w1"), spec("c", "controller"))
    assert decide(desired, {}, 0.0) == [Start(desired[name]) for name in ("c", "w1", "w2", "g")]


def test_nothing_is_done_where_all_is_as_wanted() -> None:
    specs = (spec("c", "controller"), spec("w"), spec("g", "gateway"))
    assert decide(fleet(*specs), ready(*specs), 5.0) == []
    coming_up = {name: replace(each, ready=False) for name, each in ready(*specs).items()}
    assert decide(fleet(*specs), coming_up, 5.0) == []


def test_nobody_goes_for_one_that_the_gateways_may_not_have_heard_of() -> None:
    changed = fleet(spec("a", mark="new"), spec("b", mark="new"))
    observed = {**ready(spec("a", mark="new"), spec("b"))}
    observed["a"] = replace(observed["a"], steady=False)
    assert decide(changed, observed, 0.0) == []
    assert decide(fleet(spec("a", mark="new")), observed, 0.0) == []
    observed["a"] = replace(observed["a"], steady=True)
    assert decide(changed, observed, 0.0) == [Drain("b")]


def test_a_surplus_worker_is_drained_then_stopped_when_idle() -> None:
    keep, go = spec("a"), spec("b")
    observed = ready(keep, go)
    assert decide(fleet(keep), observed, 0.0) == [Drain("b")]
    observed["b"] = replace(observed["b"], draining=0.0)
    assert decide(fleet(keep), observed, HEARD_SECONDS) == []
    observed["b"] = replace(observed["b"], idle=True)
    assert decide(fleet(keep), observed, HEARD_SECONDS / 2) == []
    assert decide(fleet(keep), observed, HEARD_SECONDS) == [Stop("b")]
    observed["b"] = replace(observed["b"], stopping=True)
    assert decide(fleet(keep), observed, 9.0) == []


def test_a_worker_that_does_not_become_idle_is_stopped_after_a_while() -> None:
    observed = {"a": Observed(spec("a"), ready=True, draining=1.0)}
    assert decide({}, observed, 1.0 + DRAIN_SECONDS - 0.01) == []
    assert decide({}, observed, 1.0 + DRAIN_SECONDS) == [Stop("a")]


def test_one_that_never_came_up_is_stopped_without_ado() -> None:
    assert decide({}, {"a": Observed(spec("a"))}, 0.0) == [Stop("a")]


def test_a_worker_wanted_again_gets_work_again() -> None:
    observed = {"a": Observed(spec("a"), ready=True, draining=0.0)}
    assert decide(fleet(spec("a")), observed, 1.0) == [Undrain("a")]


def test_one_that_serves_nothing_is_changed_at_once_whatever_the_others_do() -> None:
    observed = {"a": Observed(spec("a")), "b": Observed(spec("b"))}
    desired = fleet(spec("a", mark="new"), spec("b", mark="new"))
    assert decide(desired, observed, 0.0) == [Stop("a"), Stop("b")]


def test_a_change_that_does_not_come_up_goes_no_further() -> None:
    observed = {"a": Observed(spec("a", mark="new")), "b": Observed(spec("b"), ready=True)}
    assert decide(fleet(spec("a", mark="new"), spec("b", mark="new")), observed, 99.0) == []


def test_a_surplus_one_stays_until_its_successor_serves() -> None:
    old, new = spec("old"), spec("new")
    assert decide(fleet(new), ready(old), 0.0) == [Start(new)]
    assert decide(fleet(new), {**ready(old), "new": Observed(new)}, 0.0) == []
    assert decide(fleet(new), ready(old, new), 0.0) == [Drain("old")]


def test_one_that_holds_the_port_of_another_goes_first() -> None:
    old, new = spec("gw", "gateway", port=8000), spec("gw-1", "gateway", port=8000)
    assert decide(fleet(new), ready(old), 0.0) == [Stop("gw")]
    # With a second one that can come up before, it waits for that.
    second = spec("gw-2", "gateway", port=8001)
    assert decide(fleet(new, second), ready(old), 0.0) == [Start(second)]
    assert decide(fleet(new, second), {**ready(old), "gw-2": Observed(second)}, 0.0) == []
    assert decide(fleet(new, second), ready(old, second), 0.0) == [Stop("gw")]


def test_where_ports_move_up_the_last_one_goes_first() -> None:
    observed = ready(spec("g1", "gateway", port=1), spec("g2", "gateway", port=2))
    desired = fleet(spec("g1", "gateway", port=2), spec("g2", "gateway", port=3))
    assert decide(desired, observed, 0.0) == [Stop("g2")]


def test_the_only_worker_of_a_pool_is_replaced_beside_a_second_one() -> None:
    old, new = spec("cpu-1"), spec("cpu-1", mark="new")
    surge = replace(new, name="cpu-surge")
    assert decide(fleet(new), ready(old), 0.0) == [Start(surge)]
    # It may never come up: then the old one stays.
    assert decide(fleet(new), {**ready(old), "cpu-surge": Observed(surge)}, 99.0) == []
    fresh = {**ready(old), "cpu-surge": Observed(surge, ready=True, steady=False)}
    assert decide(fleet(new), fresh, 0.0) == []
    assert decide(fleet(new), ready(old, surge), 0.0) == [Drain("cpu-1")]
    assert decide(fleet(new), ready(surge), 0.0) == [Start(new)]
    assert decide(fleet(new), {**ready(surge), "cpu-1": Observed(new)}, 0.0) == []
    assert decide(fleet(new), ready(surge, new), 0.0) == [Drain("cpu-surge")]
    # The change is taken back before it is done.
    assert decide(fleet(old), {**ready(old), "cpu-surge": Observed(surge)}, 0.0) == [Stop("cpu-surge")]


def test_requests_reach_gateways_first_so_they_are_stopped_first() -> None:
    c, w, g = spec("c", "controller"), spec("w"), spec("g", "gateway")
    assert stopping_order([c, w, g]) == [[g], [w], [c]]
    assert stopping_order([c]) == [[c]]


# Whole ways.

_names = st.sampled_from(["a", "b", "c", "d", "e"])


@st.composite
def specs(draw: st.DrawFn) -> ProcessSpec:
    role: Role = draw(st.sampled_from(["controller", "gateway", "worker"]))
    name = f"{role}-{draw(_names)}"
    pool = draw(st.sampled_from(["cpu", "gpu"]))
    return spec(name, role, draw(st.sampled_from(["", "new"])), pool, draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4])))


def _fleets() -> st.SearchStrategy[dict[str, ProcessSpec]]:
    def one_port_each(drawn: list[ProcessSpec]) -> dict[str, ProcessSpec]:
        taken: set[str] = set()
        chosen: dict[str, ProcessSpec] = {}
        for each in drawn:
            port = each.arguments[2]
            if each.name not in chosen and (port == "h:0" or port not in taken):
                taken.add(port)
                chosen[each.name] = each
        return chosen

    return st.lists(specs(), max_size=10).map(one_port_each)


class Machine:
    """A machine that performs each action one turn later, and checks that the rule is kept."""

    def __init__(self, running: Mapping[str, ProcessSpec]) -> None:
        self.observed = ready(*running.values())
        self.now = 0.0

    def turn(self, desired: Mapping[str, ProcessSpec]) -> list[Action]:
        actions = decide(desired, self.observed, self.now)
        self._check(desired, actions)
        # What was on its way has arrived.
        self.observed = {
            name: replace(each, ready=True, idle=each.draining is not None)
            for name, each in self.observed.items()
            if not each.stopping
        }
        for action in actions:
            match action:
                case Start(each):
                    assert each.name not in self.observed
                    assert all(
                        other.spec.arguments[2] != each.arguments[2] or each.arguments[2] == "h:0"
                        for other in self.observed.values()
                    )
                    self.observed[each.name] = Observed(each)
                case Drain(name):
                    self.observed[name] = replace(self.observed[name], draining=self.now, idle=False)
                case Undrain(name):
                    self.observed[name] = replace(self.observed[name], draining=None, idle=False)
                case Stop(name):
                    self.observed[name] = replace(self.observed[name], stopping=True)
        self.now += 1.0
        return actions

    def _check(self, desired: Mapping[str, ProcessSpec], actions: list[Action]) -> None:
        reported = [action.spec.name if isinstance(action, Start) else action.name for action in actions]
        assert len(set(reported)) == len(reported)
        taken = {action.name for action in actions if isinstance(action, Drain | Stop)}
        for name in taken:
            mine = self.observed[name]
            if not mine.serves:
                continue
            group = (mine.spec.role, mine.spec.pool)
            members = [each for each in desired.values() if (each.role, each.pool) == group]
            others = [
                other
                for other, each in self.observed.items()
                if other not in taken and each.serves and (each.spec.role, each.spec.pool) == group
            ]
            conflicts = any(
                each.name not in self.observed and each.arguments[2] == mine.spec.arguments[2] != "h:0"
                for each in desired.values()
            )
            moves = name in desired and (desired[name].role, desired[name].pool) != group
            # The last that serves goes only where there is no choice.
            assert others or not members or [each.name for each in members] == [name] or conflicts or moves


@given(_fleets(), st.lists(_fleets(), min_size=1, max_size=3), st.integers(0, 4))
def test_every_way_ends_at_what_is_wanted_and_never_takes_the_last_one(
    begin: dict[str, ProcessSpec], wishes: list[dict[str, ProcessSpec]], hurry: int
) -> None:
    machine = Machine(begin)
    for desired in wishes[:-1]:
        for _ in range(hurry):
            machine.turn(desired)
    for _ in range(100):
        if not machine.turn(wishes[-1]) and {n: o.spec for n, o in machine.observed.items()} == wishes[-1]:
            break
    assert {name: each.spec for name, each in machine.observed.items()} == wishes[-1]
    assert all(each.draining is None and not each.stopping for each in machine.observed.values())


@given(_fleets())
def test_what_did_not_change_is_left_alone(desired: dict[str, ProcessSpec]) -> None:
    assert decide(desired, ready(*desired.values()), 0.0) == []


def test_a_lost_process_is_replaced_if_it_is_still_desired() -> None:
    stays, goes = spec("a"), spec("b")
    observed = {each.name: Observed(each, lost=True) for each in (stays, goes)}
    assert decide(fleet(stays), observed, 0.0) == [Replace("a"), Stop("b")]
