"""A rollout's steps: what is prepared, what is aborted and why, what is committed and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from observed_states import POOL, assignment, observed, rollout, settle, with_state, worker

from isochrone.control.rollout.desired_versions import WITHDRAWN
from isochrone.control.rollout.machine import ABORT_SECONDS, DRAIN_SECONDS, SEEN, advance
from isochrone.control.rollout.observed_state import Failure, Loaded, ObservedState, Verdict
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import EpochRecord, Split
from isochrone.control.state.rollout_records import (
    ABORTED,
    ABORTING,
    CANARY,
    COMPARING,
    DONE,
    DRAINING,
    PREPARING,
    SWITCHING,
    CanaryRule,
    Change,
    CompareRule,
    SwitchRecord,
    VerdictRecord,
)

ONE = {"m": {"1": "old"}}
BOTH = {"m": {"1": "old", "2": "new"}}


class TestPreparing:
    def test_it_begins_and_waits_for_every_worker(self) -> None:
        record = settle(rollout(), observed(worker("w1", BOTH), worker("w2", ONE)))
        assert record.state == PREPARING
        assert record.workers["w1"].state == "ready"
        assert record.workers["w2"].state == "loading"

    def test_a_worker_that_has_not_answered_is_waited_for(self) -> None:
        record = settle(rollout(), observed(worker("w1", BOTH), worker("w2", None)))
        assert record.workers["w2"].state == "waiting"

    def test_all_ready_and_of_one_digest_goes_on(self) -> None:
        decision = advance(with_state(rollout(), PREPARING), observed(worker("w1", BOTH), worker("w2", BOTH)))
        assert decision.record.state == SWITCHING
        assert decision.record.changes["m"].digest == "new"

    def test_who_signed_it_is_recorded_when_it_is_prepared(self) -> None:
        signed = Loaded("READY", "new", signed_by="key sha256:ab at noon")
        worker_ = replace(worker("w1", BOTH), models={"m": {"1": Loaded("READY", "old"), "2": signed}})
        decision = advance(with_state(rollout(), PREPARING), observed(worker_, worker("w2", BOTH)))
        assert decision.record.changes["m"].signed_by == "key sha256:ab at noon"
        assert decision.record.summary == "m 1 → 2 (signed by key sha256:ab at noon)"

    def test_a_digest_that_differs_on_one_worker_aborts_and_is_named(self) -> None:
        odd = {"m": {"1": "old", "2": "0ther"}}
        seen = observed(worker("w1", BOTH), worker("w2", BOTH), worker("w3", odd))
        decision = advance(with_state(rollout(), PREPARING), seen)
        assert decision.record.state == ABORTING
        assert "worker w3 has 0ther" in decision.record.reason
        assert "2 other(s) have new" in decision.record.reason
        assert decision.commit is None

    def test_a_refused_load_aborts_with_the_workers_words(self) -> None:
        broken = worker("w2", ONE, failures={"m": Failure(frozenset({"2"}), "the file is cut off")})
        decision = advance(with_state(rollout(), PREPARING), observed(worker("w1", BOTH), broken))
        assert decision.record.state == ABORTING
        assert decision.record.reason == "not every worker could load it: worker w2: the file is cut off"

    def test_a_worker_that_restarts_with_other_repositories_is_waited_for(self) -> None:
        failing = worker("w2", ONE, failures={"m": Failure(frozenset({"2"}), "no such version")})
        outdated = replace(failing, record=msgspec.structs.replace(failing.record, repositories=("/old",)))
        record = with_state(rollout(), PREPARING)
        seen = observed(worker("w1", BOTH), outdated, repositories={"w1": ("/new",), "w2": ("/new",)})
        waiting = advance(record, seen).record
        assert waiting.state == PREPARING
        assert waiting.workers["w2"].detail == "restarts with other repositories"
        # A worker that has them, or that the fleet does not start, counts.
        for repositories in ({"w2": ("/old",)}, {}):
            assert advance(record, replace(seen, repositories=repositories)).record.state == ABORTING

    def test_a_failure_of_other_versions_is_not_its_affair(self) -> None:
        other = worker("w2", BOTH, failures={"m": Failure(frozenset({"9"}), "gone")})
        assert advance(with_state(rollout(), PREPARING), observed(worker("w1", BOTH), other)).record.state == SWITCHING

    def test_time_runs_out(self) -> None:
        record = with_state(rollout(prepare_seconds=10.0), PREPARING)
        seen = observed(worker("w1", ONE), now=111.0)
        assert "worker w1 did not get ready within 10 s" in advance(record, seen).record.reason

    def test_without_any_worker_it_waits_and_then_says_so(self) -> None:
        record = with_state(rollout(prepare_seconds=10.0), PREPARING)
        assert advance(record, observed()).record.state == PREPARING
        assert "no worker is registered for m" in advance(record, observed(now=111.0)).record.reason

    def test_a_worker_of_another_pool_does_not_matter(self) -> None:
        record = rollout(changes={"m": Change("2", "1", pools=("gpu",))})
        assert settle(record, observed(worker("w1", BOTH))).state == PREPARING

    def test_one_that_does_not_fit_is_aborted_before_anything_is_loaded(self) -> None:
        record = rollout(changes={"m": Change("2", "1", pools=(POOL,), memory=8 << 30)})
        seen = observed(worker("w1", ONE, memory=2 << 30), epoch=EpochRecord(1, {"m": assignment(memory=1 << 30)}))
        decision = advance(record, seen)
        assert decision.record.state == ABORTING
        assert "m version 2 needs 8.0 GiB" in decision.record.reason
        assert "worker w1, which has 2.0 GiB" in decision.record.reason

    def test_another_rollout_of_the_same_model_is_waited_for(self) -> None:
        other = with_state(rollout("3"), PREPARING)
        mine = rollout()
        seen = observed(worker("w1", ONE), rollouts=(mine, type(other)("r0", other.changes, PREPARING)))
        decision = advance(mine, seen)
        assert decision.record.state == "pending"
        assert decision.record.note == "waits for rollout r0"

    def test_the_way_back_does_not_wait_for_the_last_rollout_to_drain(self) -> None:
        draining = type(rollout())("r0", rollout().changes, DRAINING)
        decision = advance(rollout(), observed(worker("w1", ONE), rollouts=(rollout(), draining)))
        assert decision.record.state == PREPARING

    def test_servers_that_tell_no_digest_are_taken_as_they_are(self) -> None:
        silent = {"m": {"1": "", "2": ""}}
        decision = advance(with_state(rollout(), PREPARING), observed(worker("t1", silent), worker("t2", silent)))
        assert decision.record.state == SWITCHING
        assert decision.record.changes["m"].digest == ""


class TestFast:
    def test_the_commit_is_one_write_with_the_rollout(self) -> None:
        record = with_state(rollout(changes={"m": Change("2", "1", "new", (POOL,))}), SWITCHING)
        decision = advance(record, observed(worker("w1", BOTH)))
        assert decision.commit is not None
        assert decision.commit.epoch == 2
        served = decision.commit.models["m"]
        assert (served.version, served.digest, served.previous) == ("2", "new", "1")
        assert decision.record.state == DRAINING
        assert decision.record.epoch == 2

    def test_the_commit_follows_the_newest_epoch_that_anybody_has(self) -> None:
        """The store was lost, and gateways serve what it had."""
        record = with_state(rollout(changes={"m": Change("2", "1", "new", (POOL,))}), SWITCHING)
        for witness in (
            {"gateways": {"a": GatewayRecord("a", "h", 1, epoch=7)}},
            {"epochs_seen": {"a-first": 7}},
            {"xds_epochs": {"c1": 7}},
        ):
            seen = replace(observed(worker("w1", BOTH), epoch=EpochRecord(0)), **witness)  # type: ignore[arg-type]
            decision = advance(record, seen)
            assert decision.commit is not None
            assert (decision.commit.epoch, decision.record.epoch) == (8, 8)

    def test_a_gateway_that_missed_the_last_change_is_waited_for(self) -> None:
        record = with_state(rollout(), SWITCHING)
        late = {"a": GatewayRecord("a", "h", 1, epoch=1)}
        losing = EpochRecord(1, {"m": assignment(previous="0")})
        assert advance(record, observed(worker("w1", BOTH), epoch=losing)).commit is not None
        decision = advance(record, replace(observed(worker("w1", BOTH), epoch=losing), gateways=late))
        assert decision.commit is None
        assert "gateway b" in decision.record.note

    def test_it_is_not_waited_for_where_it_loses_nothing(self) -> None:
        late = {"a": GatewayRecord("a", "h", 1, epoch=1)}
        back = with_state(rollout("2", kind="rollback"), SWITCHING)
        for previous in ("", "2"):
            epoch = EpochRecord(1, {"m": assignment(previous=previous)})
            seen = replace(observed(worker("w1", BOTH), epoch=epoch), gateways=late)
            assert advance(back, seen).commit is not None

    def test_too_few_workers_left_means_preparing_again(self) -> None:
        record = with_state(rollout(), SWITCHING)
        decision = advance(record, observed(worker("w1", ONE), worker("w2", ONE), worker("w3", BOTH)))
        assert decision.record.state == PREPARING
        assert decision.commit is None

    def test_the_end(self) -> None:
        epoch = EpochRecord(2, {"m": assignment("2", previous="1", epoch=2)})
        gateways = {name: GatewayRecord(name, "h", 1, epoch=2) for name in ("a", "b")}
        record = with_state(rollout(epoch=2), DRAINING)
        seen = observed(worker("w1", BOTH))
        assert advance(record, replace(seen, epoch=epoch)).record.state == DRAINING
        done = advance(record, replace(seen, epoch=epoch, gateways=gateways))
        assert done.record.state == DONE

    def test_an_older_version_must_go_first(self) -> None:
        epoch = EpochRecord(3, {"m": assignment("3", previous="2", epoch=3)})
        gateways = {name: GatewayRecord(name, "h", 1, epoch=3) for name in ("a", "b")}
        three = worker("w1", {"m": {"1": "o", "2": "n", "3": "x"}})
        record = with_state(rollout("3", epoch=3), DRAINING)
        seen = replace(observed(three, epoch=epoch), gateways=gateways)
        decision = advance(record, seen)
        assert decision.record.state == DRAINING
        assert decision.record.note == "drains m 1 on w1"
        late = replace(seen, now=100.0 + DRAIN_SECONDS + 1)
        assert advance(record, late).record.state == DONE

    def test_the_note_has_the_reason_why_a_worker_keeps_an_older_version(self) -> None:
        epoch = EpochRecord(3, {"m": assignment("3", previous="2", epoch=3)})
        rejected = {"m": Failure(frozenset(), "an unload ended its process")}
        three = worker("w1", {"m": {"1": "o", "2": "n", "3": "x"}}, failures=rejected)
        gateways = {name: GatewayRecord(name, "h", 1, epoch=3) for name in ("a", "b")}
        record = with_state(rollout("3", epoch=3), DRAINING)
        decision = advance(record, replace(observed(three, epoch=epoch), gateways=gateways))
        assert decision.record.note == "drains m 1 on w1 (an unload ended its process)"


class TestMoving:
    """The same version on other pools."""

    CHANGE = Change("1", "1", pools=("gpu",), left=(POOL,))
    EPOCH = EpochRecord(1, {"m": assignment(digest="old", previous="0", previous_digest="older")})

    def seen(self, there: dict[str, dict[str, str]], **fields: Any) -> ObservedState:
        return observed(worker("w1", ONE), worker("g1", there, pool="gpu"), **{"epoch": self.EPOCH, **fields})

    def test_it_is_loaded_there_before_it_moves(self) -> None:
        waiting = settle(rollout(changes={"m": self.CHANGE}), self.seen({}))
        assert (waiting.state, waiting.workers["g1"].state, "w1" in waiting.workers) == (PREPARING, "loading", False)
        decision = advance(waiting, self.seen(ONE))
        assert decision.record.state == SWITCHING
        moved = advance(decision.record, self.seen(ONE)).commit
        assert moved is not None
        expected = assignment(digest="old", previous="0", previous_digest="older", pools=("gpu",), epoch=2)
        assert moved.models["m"] == expected, "its way back is what it was"

    def test_another_digest_there_is_another_version(self) -> None:
        record = with_state(rollout(changes={"m": self.CHANGE}), PREPARING)
        decision = advance(record, self.seen({"m": {"1": "other"}}))
        assert decision.record.state == ABORTING
        assert "m version 1 is other in pool gpu, and old where it is served" in decision.record.reason
        triton = advance(record, self.seen({"m": {"1": "config-5"}}))
        assert triton.record.state == SWITCHING, "a digest of another kind proves nothing"

    def test_the_pool_it_left_serves_it_until_every_gateway_has_seen_that(self) -> None:
        epoch = EpochRecord(2, {"m": assignment(pools=("gpu",), epoch=2)})
        record = with_state(rollout(changes={"m": self.CHANGE}, epoch=2), DRAINING)
        late = self.seen(ONE, epoch=epoch, now=100.0 + 10 * DRAIN_SECONDS, rollouts=(record,))
        decision = advance(record, late)
        assert decision.record.state == DRAINING
        assert "waits for gateway a, b to see epoch 2" in decision.record.note
        assert advance(record, replace(late, epochs_seen={"a-first": 2, "b-first": 2})).record.state == DONE

    def test_in_a_canary_of_another_model_it_has_no_share(self) -> None:
        changes = {"m": self.CHANGE, "n": Change("2", "1", "new", ("gpu",))}
        epoch = EpochRecord(1, {**self.EPOCH.models, "n": assignment()})
        record = with_state(rollout(changes=changes, canary=CanaryRule(weights=(0.1,))), CANARY)
        decision = advance(record, self.seen(ONE, epoch=epoch))
        assert decision.commit is not None
        assert decision.commit.models["m"] == epoch.models["m"]
        assert decision.commit.models["n"].canary == Split("2", "new", 0.1)
        assert advance(decision.record, self.seen(ONE, epoch=decision.commit)).observes


class TestAborting:
    def test_asked_for(self) -> None:
        record = with_state(rollout(abort_asked="changed my mind (by me)"), PREPARING)
        decision = advance(record, observed(worker("w1", BOTH)))
        assert decision.record.state == ABORTING
        assert decision.record.reason == "changed my mind (by me)"

    def test_it_ends_when_no_worker_has_the_new_version(self) -> None:
        record = with_state(rollout(reason="bad"), ABORTING)
        assert advance(record, observed(worker("w1", BOTH))).record.state == ABORTING
        assert advance(record, observed(worker("w1", ONE))).record.state == ABORTED
        late = observed(worker("w1", BOTH), now=100.0 + ABORT_SECONDS + 1)
        assert advance(record, late).record.state == ABORTED

    def test_why_is_told_once(self) -> None:
        seen = observed(worker("w1", ONE))
        begun = advance(with_state(rollout(abort_asked="bad"), PREPARING), seen)
        ended = advance(begun.record, seen)
        assert ended.record.state == ABORTED
        assert [begun.event, ended.event] == ["aborted: bad", ""]

    def test_what_is_committed_is_not_aborted_any_more(self) -> None:
        record = with_state(rollout(abort_asked="too late", epoch=2), DRAINING)
        assert advance(record, observed(worker("w1", BOTH))).record.state != ABORTING


class TestCanary:
    RULE = CanaryRule(weights=(0.1, 0.5))

    def test_each_step_is_an_epoch(self) -> None:
        record = with_state(rollout(canary=self.RULE, changes={"m": Change("2", "1", "new", (POOL,))}), PREPARING)
        seen = observed(worker("w1", BOTH))
        begun = advance(record, seen)
        assert begun.record.state == CANARY
        committed = advance(begun.record, seen).commit
        assert committed is not None
        assert committed.models["m"].canary == Split("2", "new", 0.1)
        assert committed.models["m"].version == "1"

    def test_a_good_one_goes_on_to_the_next_step_and_then_switches(self) -> None:
        record = with_state(rollout(canary=self.RULE), CANARY)
        split = EpochRecord(2, {"m": assignment(canary=Split("2", "", 0.1))})
        seen = observed(worker("w1", BOTH), epoch=split, judged={"r1": Verdict("go", "fine")})
        assert advance(record, seen).record.step == 1
        split = EpochRecord(3, {"m": assignment(canary=Split("2", "", 0.5))})
        seen = observed(worker("w1", BOTH), epoch=split, judged={"r1": Verdict("go", "fine")})
        last = with_state(rollout(canary=self.RULE, step=1), CANARY)
        assert advance(last, seen).record.state == SWITCHING

    def test_without_a_word_it_is_observed(self) -> None:
        record = with_state(rollout(canary=self.RULE), CANARY)
        split = EpochRecord(2, {"m": assignment(canary=Split("2", "", 0.1))})
        decision = advance(record, observed(worker("w1", BOTH), epoch=split))
        assert decision.observes
        assert decision.commit is None

    def test_a_bad_one_goes_back_in_the_same_write(self) -> None:
        record = with_state(rollout(canary=self.RULE), CANARY)
        split = EpochRecord(2, {"m": assignment(canary=Split("2", "", 0.1))})
        seen = observed(worker("w1", BOTH), epoch=split, judged={"r1": Verdict("stop", "p95 13 ms against 10")})
        decision = advance(record, seen)
        assert decision.record.state == ABORTING
        assert "p95 13 ms against 10" in decision.record.reason
        assert decision.commit is not None
        assert decision.commit.models["m"].canary is None
        assert decision.commit.models["m"].version == "1"

    def test_a_bad_one_stays_loaded_until_no_gateway_sends_to_it(self) -> None:
        record = with_state(rollout(canary=self.RULE, epoch=3, reason="bad"), ABORTING)

        def seen(now: float, has: dict[str, dict[str, str]], *epochs: int) -> ObservedState:
            names = ("a", "b")
            gateways = {
                name: GatewayRecord(name, "127.0.0.1", 1, epoch=each) for name, each in zip(names, epochs, strict=True)
            }
            found = observed(worker("w1", has), epoch=EpochRecord(3, {"m": assignment()}), now=now)
            return replace(found, gateways=gateways)

        # However long a gateway may be sending to it.
        waiting = advance(record, seen(100.0 + 10 * ABORT_SECONDS, BOTH, 3, 2)).record
        assert waiting.state == ABORTING
        assert waiting.note == "waits for gateway b to see epoch 3; if one is dead for good, run: isochrone forget b"
        at_first = advance(record, seen(100.1, BOTH, 3, 2)).record
        assert at_first.note == "waits for gateway b to see epoch 3"
        assert WITHDRAWN not in waiting.since
        # What they had sent before gets a moment to arrive.
        all_see = advance(waiting, seen(900.0, BOTH, 3, 3)).record
        assert (WITHDRAWN in all_see.since, all_see.note) == (False, "")
        assert advance(all_see, seen(900.4, BOTH, 3, 3)).record == all_see
        gone = advance(all_see, seen(900.5, BOTH, 3, 3)).record
        assert gone.since[WITHDRAWN] == 900.5
        assert advance(gone, seen(900.6, BOTH, 3, 3)).record.state == ABORTING
        assert advance(gone, seen(900.6, ONE, 3, 3)).record.state == ABORTED
        assert advance(gone, seen(901.0 + ABORT_SECONDS, BOTH, 3, 3)).record.state == ABORTED

    def test_a_gateway_that_is_forgotten_is_not_waited_for(self) -> None:
        record = with_state(rollout(canary=self.RULE, epoch=3, reason="bad"), ABORTING)
        seen = observed(worker("w1", ONE), epoch=EpochRecord(3, {"m": assignment()}), gateways=("b",))
        assert "gateway b" in advance(record, seen).record.note
        assert SEEN in advance(record, replace(seen, known_gateways={})).record.since

    def test_what_it_passed_by_is_told(self) -> None:
        split = EpochRecord(3, {"m": assignment(canary=Split("2", "", 0.1))})
        seen = observed(worker("w1", BOTH), epoch=split, judged={"r1": Verdict("go", "p95 10 ms against 10")})
        passed = advance(with_state(rollout(canary=self.RULE), CANARY), seen)
        assert passed.event == "passed at 10%: p95 10 ms against 10"

    def test_the_verdict_of_every_step_stays_with_the_rollout(self) -> None:
        def seen(weight: float, verdict: Verdict) -> ObservedState:
            split = EpochRecord(3, {"m": assignment(canary=Split("2", "", weight))})
            return observed(worker("w1", BOTH), epoch=split, judged={"r1": verdict})

        first = advance(with_state(rollout(canary=self.RULE), CANARY), seen(0.1, Verdict("go", "not worse"))).record
        assert first.verdicts == (VerdictRecord("canary at 10%", True, "not worse"),)
        last = advance(first, seen(0.5, Verdict("stop", "p95 13 ms against 10"))).record
        assert last.verdicts[1:] == (VerdictRecord("canary at 50%", False, "p95 13 ms against 10"),)
        by_hand = msgspec.structs.replace(first, promote_asked=True)
        promoted = advance(by_hand, seen(0.5, Verdict("wait", "few"))).record
        assert promoted.verdicts[1:] == (VerdictRecord("canary at 50%", True, "promoted by hand"),)

    def test_a_verdict_that_has_to_wait_for_a_switch_is_kept_once(self) -> None:
        split = EpochRecord(3, {"m": assignment(canary=Split("2", "", 0.1))})
        seen = observed(worker("w1", BOTH), epoch=split, judged={"r1": Verdict("stop", "worse")})
        seen = replace(seen, switch=SwitchRecord("r9.1", "announced", ("n",), 3))
        record = advance(with_state(rollout(canary=self.RULE), CANARY), seen).record
        assert record.state == CANARY
        assert len(advance(record, seen).record.verdicts) == 1

    def test_promotion_by_hand_does_not_wait_for_figures(self) -> None:
        record = with_state(rollout(canary=self.RULE, promote_asked=True), CANARY)
        split = EpochRecord(2, {"m": assignment(canary=Split("2", "", 0.1))})
        assert advance(record, observed(worker("w1", BOTH), epoch=split)).record.state == SWITCHING


class TestComparing:
    def test_it_comes_before_anything_is_visible(self) -> None:
        record = with_state(rollout(compare=CompareRule(), canary=CanaryRule()), PREPARING)
        decision = advance(record, observed(worker("w1", BOTH)))
        assert decision.record.state == COMPARING
        assert decision.compares
        assert decision.commit is None

    def test_equal_outputs_go_on_to_the_canary(self) -> None:
        record = with_state(rollout(compare=CompareRule(), canary=CanaryRule()), COMPARING)
        seen = observed(worker("w1", BOTH), compared={"r1": Verdict("go", "m: 0 of 50 answers differ")})
        after = advance(record, seen).record
        assert after.state == CANARY
        assert after.verdicts == (VerdictRecord("comparison", True, "m: 0 of 50 answers differ"),)

    def test_different_ones_abort(self) -> None:
        record = with_state(rollout(compare=CompareRule()), COMPARING)
        seen = observed(worker("w1", BOTH), compared={"r1": Verdict("stop", "m: 50 of 50 answers differ")})
        after = advance(record, seen).record
        assert after.state == ABORTING
        assert after.verdicts == (VerdictRecord("comparison", False, "m: 50 of 50 answers differ"),)
