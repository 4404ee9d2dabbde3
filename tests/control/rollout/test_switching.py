"""The strict switch against every order of events: gateways that are slow, die, come back, cancel; a leader that dies.

The leader's decisions are the real ones. Gateways and the store are played by the rules they keep: a gateway holds
before it says so and lets go only by what the store says; the store takes a write whole, and only if nothing it was
decided by has changed. After every step no gateway may be admitting the old version once the new one is committed,
unless the store has yet to tell it of a fast change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from observed_states import POOL, acknowledgements_of, assignment, observed, rollout, with_state, worker

from isochrone.control.agents.switch_participant import Actions, SwitchParticipant
from isochrone.control.rollout.machine import advance
from isochrone.control.rollout.observed_state import ObservedState
from isochrone.control.rollout.switching import ATTEMPTS, HOLD_SECONDS, affected
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import EpochRecord
from isochrone.control.state.rollout_records import (
    ABORTING,
    ANNOUNCED,
    CANCELLED,
    DRAINING,
    HOLDING,
    STRICT,
    SWITCHING,
    AcknowledgementRecord,
    Change,
    RolloutRecord,
    SwitchRecord,
)

BOTH = {"m": {"1": "old", "2": "new"}}


def switching(**fields: object) -> RolloutRecord:
    return with_state(rollout(cutover=STRICT, **fields), SWITCHING)


def switch(phase: str, attempt: int = 1) -> SwitchRecord:
    return SwitchRecord(f"r1.{attempt}", phase, ("m",), 1)


class TestSteps:
    def test_it_is_announced_first_and_nobody_waits(self) -> None:
        decision = advance(switching(), observed(worker("w1", BOTH)))
        assert decision.switch == switch(ANNOUNCED)
        assert decision.commit is None

    def test_holding_needs_every_known_gateway(self) -> None:
        seen = observed(worker("w1", BOTH), switch=switch(ANNOUNCED), switch_since=100.0)
        assert advance(switching(), replace(seen, acknowledgements=acknowledgements_of(ANNOUNCED, "a"))).switch is None
        decision = advance(switching(), replace(seen, acknowledgements=acknowledgements_of(ANNOUNCED, "a", "b")))
        assert decision.switch == switch(HOLDING)

    def test_the_commit_needs_every_known_gateway_to_hold(self) -> None:
        seen = observed(worker("w1", BOTH), switch=switch(HOLDING), switch_since=100.0)
        assert (
            advance(switching(), replace(seen, acknowledgements=acknowledgements_of(ANNOUNCED, "a", "b"))).commit
            is None
        )
        decision = advance(switching(), replace(seen, acknowledgements=acknowledgements_of(HOLDING, "a", "b")))
        assert decision.commit is not None
        assert decision.ends_switch
        assert decision.record.state == DRAINING

    def test_the_word_of_an_earlier_start_does_not_count(self) -> None:
        stale = acknowledgements_of(HOLDING, "a") | acknowledgements_of(HOLDING, "b", incarnation="zeroth")
        seen = observed(worker("w1", BOTH), switch=switch(HOLDING), switch_since=100.0, acknowledgements=stale)
        assert advance(switching(), seen).commit is None

    def test_a_gateway_that_does_not_answer_ends_the_switch_and_it_is_tried_again(self) -> None:
        seen = observed(worker("w1", BOTH), switch=switch(HOLDING), switch_since=90.0)
        decision = advance(switching(attempts=1), replace(seen, acknowledgements=acknowledgements_of(HOLDING, "a")))
        assert decision.ends_switch
        assert f"gateway b did not answer within {HOLD_SECONDS:g} s" in decision.record.note
        again = advance(decision.record, observed(worker("w1", BOTH)))
        assert again.switch is None, "there is a pause first"
        later = advance(decision.record, observed(worker("w1", BOTH), now=200.0))
        assert later.switch is None or later.switch.identity == "r1.2"

    def test_after_many_tries_it_is_aborted_with_the_reason(self) -> None:
        seen = observed(worker("w1", BOTH), switch=switch(HOLDING, ATTEMPTS), switch_since=90.0)
        decision = advance(switching(attempts=ATTEMPTS), seen)
        assert decision.record.state == ABORTING
        assert "gateway a, b did not answer" in decision.record.reason
        assert decision.ends_switch

    def test_a_cancelled_one_is_over(self) -> None:
        cancelled = msgspec.structs.replace(switch(CANCELLED), reason="gateway a held requests for 1.2 s")
        seen = observed(worker("w1", BOTH), switch=cancelled, acknowledgements=acknowledgements_of(HOLDING, "a", "b"))
        decision = advance(switching(attempts=1), seen)
        assert decision.commit is None
        assert "gateway a held requests" in decision.record.note

    def test_another_rollouts_switch_is_waited_for(self) -> None:
        other = SwitchRecord("r9.1", HOLDING, ("n",), 1)
        decision = advance(switching(), observed(worker("w1", BOTH), switch=other))
        assert decision.switch is None
        assert not decision.ends_switch

    def test_a_fast_commit_waits_for_a_strict_switch(self) -> None:
        other = SwitchRecord("r9.1", HOLDING, ("n",), 1)
        fast = with_state(rollout(), SWITCHING)
        assert advance(fast, observed(worker("w1", BOTH), switch=other)).commit is None

    def test_clients_of_xds_that_connect_do_not_end_a_switch(self) -> None:
        """Their server falls back to epoch 0 until they have routes. They do not take part in the switch."""
        epoch = EpochRecord(1, {"m": assignment("1", previous="0")})
        seen = observed(worker("w1", BOTH), epoch=epoch, xds_epochs={"c1": 0})
        before = advance(switching(), seen)
        assert before.switch is None
        assert before.record.note == "waits for gateway c1 (xDS) to see epoch 1"
        for phase, then in ((ANNOUNCED, switch(HOLDING)), (HOLDING, None)):
            during = replace(
                seen,
                switch=switch(phase),
                switch_since=100.0,
                acknowledgements=acknowledgements_of(phase, "a", "b"),
            )
            decision = advance(switching(attempts=1), during)
            assert decision.switch == then
            assert decision.ends_switch == (decision.commit is not None) == (phase == HOLDING)
        # A gateway that has not seen the epoch still ends it.
        joined = replace(during, known_gateways={**seen.known_gateways, "late": "late-first"})
        ended = advance(switching(attempts=1), joined)
        assert ended.ends_switch
        assert ended.commit is None

    def test_advice_for_late_clients_of_xds_is_no_command_that_does_not_exist(self) -> None:
        epoch = EpochRecord(1, {"m": assignment("1", previous="0")})
        seen = observed(worker("w1", BOTH), epoch=epoch, xds_epochs={"c1": 0}, now=100_000.0)
        decision = advance(switching(), seen)
        assert decision.record.state == ABORTING
        assert "gateway c1 (xDS) still serves an earlier epoch" in decision.record.reason
        assert "forget" not in decision.record.reason
        both = advance(switching(), replace(seen, known_gateways={**seen.known_gateways, "late": "late-first"}))
        assert both.record.reason.endswith("run 'isochrone forget late'")

    def test_ensembles_that_run_the_model_are_held_too(self) -> None:
        epoch = EpochRecord(
            1, {"m": assignment(), "e": assignment(stages=("m",)), "f": assignment(stages=("e",)), "n": assignment()}
        )
        assert affected(rollout(), epoch) == {"m", "e", "f"}

    def test_what_nobody_has_seen_needs_no_switch(self) -> None:
        first = with_state(rollout(cutover=STRICT), SWITCHING)
        decision = advance(first, observed(worker("w1", BOTH), epoch=EpochRecord(0)))
        assert decision.commit is not None


class TestPart:
    """A gateway's own part."""

    def test_it_holds_once_and_says_each_phase_once(self) -> None:
        participant = SwitchParticipant()
        assert participant.observe(switch(ANNOUNCED), 1) == Actions(acknowledge=True)
        assert participant.observe(switch(ANNOUNCED), 1) == Actions()
        assert participant.observe(switch(HOLDING), 1) == Actions(hold=("m",), acknowledge=True)
        assert participant.observe(switch(HOLDING), 1) == Actions()
        assert participant.observe(None, 2) == Actions(release=True)
        assert participant.observe(None, 2) == Actions()

    def test_one_switch_is_never_held_for_another(self) -> None:
        """Two changes may be seen as one: the first switch over, the next one under way."""
        participant = SwitchParticipant()
        participant.observe(switch(HOLDING), 1)
        other = SwitchRecord("r2.1", HOLDING, ("n",), 2)
        assert participant.observe(other, 2) == Actions(release=True, hold=("n",), acknowledge=True)
        announced = SwitchRecord("r3.1", ANNOUNCED, ("o",), 3)
        assert participant.observe(announced, 3) == Actions(release=True, acknowledge=True)

    def test_the_next_attempt_is_held_anew(self) -> None:
        participant = SwitchParticipant()
        participant.observe(switch(HOLDING), 1)
        assert participant.observe(switch(ANNOUNCED, 2), 1) == Actions(release=True, acknowledge=True)
        assert participant.observe(switch(HOLDING, 2), 1) == Actions(hold=("m",), acknowledge=True)

    def test_a_switch_that_is_over_is_nothing(self) -> None:
        participant = SwitchParticipant()
        participant.observe(switch(HOLDING), 1)
        assert participant.observe(switch(CANCELLED), 1) == Actions(release=True)
        assert participant.observe(switch(HOLDING), 2) == Actions(), "its epoch has been replaced"

    def test_what_could_not_be_said_is_said_again(self) -> None:
        participant = SwitchParticipant()
        participant.observe(switch(HOLDING), 1)
        participant.acknowledgement_failed(switch(HOLDING))
        assert participant.observe(switch(HOLDING), 1) == Actions(acknowledge=True)


@dataclass
class Gateway:
    """One gateway: what it has seen of the store, and its real part in switches."""

    name: str
    incarnation: int = 0
    alive: bool = True
    registered: bool = False
    participant: SwitchParticipant = field(default_factory=SwitchParticipant)
    #: The epoch it serves by; and the models it holds.
    epoch: int = 0
    held: frozenset[str] = frozenset()
    #: The revision of the store it has seen.
    seen: int = 0
    #: Acknowledgements that are on their way: the switch as it was seen.
    acknowledgements_of: list[SwitchRecord] = field(default_factory=list)


@dataclass
class Held:
    """The store at one revision."""

    epoch: EpochRecord
    switch: SwitchRecord | None
    acknowledgements: dict[str, AcknowledgementRecord]
    known: dict[str, str]
    records: dict[str, RolloutRecord]


MODELS = {"r1": "m", "r2": "n"}


def next_rollout(identity: str, served: str) -> RolloutRecord:
    """Back and forth between two versions."""
    change = Change("2" if served == "1" else "1", served, pools=(POOL,))
    record = RolloutRecord(identity, {MODELS[identity]: change}, cutover=STRICT, since={"pending": 100.0})
    return with_state(record, SWITCHING)


class StrictSwitches(RuleBasedStateMachine):
    """Two models, each changed again and again by strict rollouts, at the same time."""

    gateways = Bundle("gateways")

    @initialize(target=gateways)
    def begin(self) -> Any:
        epoch = EpochRecord(1, {model: assignment() for model in MODELS.values()})
        records = {identity: next_rollout(identity, "1") for identity in MODELS}
        self.history = [Held(epoch, None, {}, {}, records)]
        self.epochs = {1: epoch}
        self.all: dict[str, Gateway] = {}
        self.now = 100.0
        self.switch_since = 100.0
        #: By model: the epoch of the newest assignment that anybody has been answered by.
        self.shown = dict.fromkeys(MODELS.values(), 1)
        return multiple(self.starts("a"), self.starts("b"))

    @property
    def store(self) -> Held:
        return self.history[-1]

    def write(self, held: Held) -> None:
        self.history.append(held)
        self.epochs[held.epoch.epoch] = held.epoch

    @rule(target=gateways, name=st.sampled_from("abc"))
    def starts(self, name: str) -> str:
        """A gateway starts, or starts again: it registers in one write, and admits by what it then sees."""
        gateway = self.all.setdefault(name, Gateway(name))
        if gateway.registered and gateway.alive:
            return name
        known = {**self.store.known, name: f"{name}-{gateway.incarnation + 1}"}
        self.write(replace(self.store, known=known))
        self.all[name] = Gateway(name, gateway.incarnation + 1, registered=True)
        self.sees(name, len(self.history) - 1)
        return name

    @rule(name=gateways)
    def dies(self, name: str) -> None:
        """Killed, and nobody knows yet."""
        self.all[name].alive = False

    @rule(name=gateways)
    def is_found_dead(self, name: str) -> None:
        """Its supervisor deregisters it."""
        gateway = self.all[name]
        if not gateway.alive and name in self.store.known:
            known = {other: acknowledgement for other, acknowledgement in self.store.known.items() if other != name}
            self.write(replace(self.store, known=known))
            gateway.registered = False

    @rule(name=gateways, steps=st.integers(1, 6))
    def looks(self, name: str, steps: int) -> None:
        """The store's news reach it, several at once."""
        gateway = self.all[name]
        if gateway.alive:
            self.sees(name, min(len(self.history) - 1, gateway.seen + steps))

    def sees(self, name: str, revision: int) -> None:
        """As ``GatewayLink`` does: first the epoch, then the switch."""
        gateway, held = self.all[name], self.history[revision]
        gateway.seen = revision
        gateway.epoch = held.epoch.epoch
        actions = gateway.participant.observe(held.switch, gateway.epoch)
        if actions.release:
            gateway.held = frozenset()
        if actions.hold:
            gateway.held = frozenset(actions.hold)
        if actions.acknowledge and held.switch is not None:
            gateway.acknowledgements_of.append(held.switch)
        # The next request may come to anybody.
        self.admits(gateway)
        self.everybody_who_admits_agrees()

    def admits(self, gateway: Gateway) -> None:
        """A request of each model comes, and is answered at once where it is not held."""
        for model in MODELS.values():
            if model not in gateway.held and gateway.epoch:
                by = self.epochs[gateway.epoch].models[model].epoch
                assert by >= self.shown[model], f"{gateway.name} admits {model} of epoch {by} after {self.shown}"
                self.shown[model] = by

    @rule(name=gateways)
    def acknowledges(self, name: str) -> None:
        """What it had to say arrives; it counts if the switch still stands as it was seen."""
        gateway = self.all[name]
        if gateway.alive and gateway.acknowledgements_of:
            seen = gateway.acknowledgements_of.pop(0)
            if seen == self.store.switch:
                acknowledgement = AcknowledgementRecord(seen.phase, f"{name}-{gateway.incarnation}")
                self.write(replace(self.store, acknowledgements={**self.store.acknowledgements, name: acknowledgement}))

    @rule(but=st.sampled_from(("", "", "a", "b")))
    def most_answer(self, but: str) -> None:
        """The usual course: the news come at once, and are answered."""
        for name, gateway in self.all.items():
            if not gateway.alive:
                self.is_found_dead(name)
            elif name != but:
                self.sees(name, len(self.history) - 1)
                while gateway.acknowledgements_of:
                    self.acknowledges(name)

    @rule(steps=st.integers(1, 6), identities=st.sampled_from((("r1",), ("r2",), ("r1", "r2"), ("r2", "r1"))))
    def goes_on(self, steps: int, identities: tuple[str, ...]) -> None:
        """Without trouble for a while, so that trouble comes at every point of a switch. The leader takes every rollout
        a step further before gateways look: one switch may be over and the next one begun."""
        for _ in range(steps):
            for identity in identities:
                self.leads(identity, 0, 0.0)
            self.most_answer("")

    @rule(name=gateways)
    def cancels(self, name: str) -> None:
        gateway = self.all[name]
        seen = self.history[gateway.seen].switch
        if gateway.alive and gateway.held and seen is not None and seen == self.store.switch:
            self.write(replace(self.store, switch=msgspec.structs.replace(seen, phase=CANCELLED)))

    @rule(
        identity=st.sampled_from(sorted(MODELS)),
        lag=st.sampled_from((0, 0, 0, 1, 2, 3)),
        seconds=st.sampled_from((0.0, 0.0, 0.0, 0.1, 0.6, 1.5, 4.0)),
    )
    def leads(self, identity: str, lag: int, seconds: float) -> None:
        """A leader, this one or the next, decides by what it has seen; a write by old news is refused."""
        self.now += seconds
        held = self.history[max(0, len(self.history) - 1 - lag)]
        decision = advance(held.records[identity], self.observed(held))
        current = self.store
        stale = held.records[identity] != current.records[identity]
        if decision.commit is not None or decision.switch is not None or decision.ends_switch:
            stale = stale or held.epoch != current.epoch or held.switch != current.switch
        if decision.commit is not None:
            stale = stale or held.known != current.known
        if stale:
            return
        record = decision.record
        if record.state in (DRAINING, ABORTING):
            served = (decision.commit or current.epoch).models[MODELS[identity]].version
            record = next_rollout(identity, served)
        after = Held(
            decision.commit or current.epoch,
            decision.switch if decision.switch is not None else None if decision.ends_switch else current.switch,
            current.acknowledgements if decision.switch is None and not decision.ends_switch else {},
            current.known,
            {**current.records, identity: record},
        )
        if after != current:
            if after.switch != current.switch:
                self.switch_since = self.now
            self.write(after)

    def observed(self, held: Held) -> ObservedState:
        gateways = {
            name: GatewayRecord(name, "h", 1, epoch=self.all[name].epoch) for name in held.known if self.all[name].alive
        }
        both = {model: {"1": "", "2": ""} for model in MODELS.values()}
        return replace(
            observed(worker("w1", both), now=self.now, epoch=held.epoch),
            gateways=gateways,
            known_gateways=held.known,
            switch=held.switch,
            switch_since=self.switch_since,
            acknowledgements=held.acknowledgements,
            rollouts=tuple(held.records.values()),
        )

    @invariant()
    def everybody_who_admits_agrees(self) -> None:
        for gateway in getattr(self, "all", {}).values():
            if gateway.alive:
                self.admits(gateway)


StrictSwitches.TestCase.settings = settings(max_examples=120, stateful_step_count=50)
TestStrictSwitches = StrictSwitches.TestCase
