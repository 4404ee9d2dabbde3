"""Sequence batching: order, slots, waiting and time, by example and against a naive account of every sequence."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tritonclient.grpc import model_config_pb2

from isochrone.clock import MICROSECOND, NEVER, SECOND
from isochrone.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    ModelFailed,
)
from isochrone.protocol.messages import InferRequest, Plan
from isochrone.worker.sequences.batcher import SequenceBatch, SequenceBatcher

CONTROLS = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END bool_false_true: [false, true] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [0, 1] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""
STATE = 'state { input_name: "SUM" output_name: "NEXT" data_type: TYPE_INT64 dims: 1 }'


def config_of(batching: str, max_batch_size: int = 4) -> Any:
    text = f'name: "m" max_batch_size: {max_batch_size} sequence_batching {{ {batching} }}'
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def batcher_of(batching: str, max_batch_size: int = 4, instances: int = 1) -> SequenceBatcher:
    return SequenceBatcher(config_of(batching, max_batch_size), instances)


def request_of(
    sequence_id: int | str,
    flags: str = "",
    value: int = 0,
    *,
    deadline: int = NEVER,
    shape_key: object = None,
    batched: bool = True,
) -> InferRequest:
    """A request with one int64 input X; ``flags`` holds "s" for START, "e" for END."""
    shape = (1, 1) if batched else (1,)
    plan = Plan(
        "m",
        "",
        (("X", "INT64", shape),),
        None,
        sequence_id=sequence_id,
        sequence_start="s" in flags,
        sequence_end="e" in flags,
    )
    plan.shape_key = shape_key
    return InferRequest(plan, "", {"X": np.full(shape, value, np.int64)}, arrived=0, deadline=deadline)


def slot_of(batcher: SequenceBatcher, sequence_id: int | str) -> tuple[int, int] | None:
    """(instance, slot) of a live sequence; None if it waits for one or does not exist."""
    sequence = batcher._sequences.get(sequence_id)
    return None if sequence is None or sequence.place is None else sequence.place[::-1]


def take(batcher: SequenceBatcher, now: int = 0, instance: int = 0) -> SequenceBatch:
    batch = batcher.take(instance, now)
    assert batch is not None
    return batch


def ids(batch: SequenceBatch) -> list[int | str]:
    return [request.plan.sequence_id for request in batch.requests]


class TestPush:
    @pytest.mark.parametrize("nothing", [0, ""])
    def test_a_request_outside_any_sequence_is_refused(self, nothing: int | str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            batcher_of("").push(request_of(nothing, "s"), 0)
        assert (
            caught.value.message == "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
        )

    @pytest.mark.parametrize("sequence_id", [7, "seven"])
    def test_the_first_request_must_carry_start(self, sequence_id: int | str) -> None:
        batcher = batcher_of("")
        with pytest.raises(InvalidArgument) as caught:
            batcher.push(request_of(sequence_id), 0)
        assert caught.value.message == (
            f"inference request for sequence {sequence_id} to model 'm' must specify the START flag on the first"
            " request of the sequence"
        )
        assert batcher.pending() == 0

    def test_after_end_only_start_may_follow(self) -> None:
        batcher = batcher_of("")
        batcher.push(request_of(7, "se"), 0)
        with pytest.raises(InvalidArgument, match="START flag"):
            batcher.push(request_of(7), 0)
        batcher.finished(take(batcher), None, 0)
        with pytest.raises(InvalidArgument, match="START flag"):
            batcher.push(request_of(7), 0)

    def test_more_than_one_row_is_refused(self) -> None:
        request = request_of(7, "s")
        request.plan.batch_size = 2
        with pytest.raises(InvalidArgument, match=r"must specify batch-size 1 .* got 2"):
            batcher_of("").push(request, 0)

    def test_returns_the_instance_to_try(self) -> None:
        batcher = batcher_of("", max_batch_size=1, instances=2)
        assert [batcher.push(request_of(i, "s"), 0) for i in (1, 2, 3)] == [0, 1, None]
        assert batcher.push(request_of(2), 0) == 1

    def test_marks_when_it_was_queued_and_taken(self) -> None:
        batcher, request = batcher_of(""), request_of(7, "s")
        batcher.push(request, 11)
        take(batcher, 13)
        assert (request.enqueued, request.dispatched) == (11, 13)


class TestDirect:
    def test_a_slot_is_a_row_and_an_empty_slot_is_not_ready(self) -> None:
        batcher = batcher_of(CONTROLS + STATE)
        for sequence_id in (10, 20, 30, 40):
            batcher.push(request_of(sequence_id, "s", sequence_id), 0)
        batch = take(batcher)
        batcher.finished(batch, {"NEXT": batch.inputs()["X"]}, 0)
        batcher.push(request_of(30, "e", 3), 0)
        batcher.push(request_of(10, "", 1), 0)
        batch = take(batcher)
        assert ids(batch) == [10, 30]
        assert [batch.row_of(0), batch.row_of(1), batch.rows] == [0, 2, 3]
        inputs = batch.inputs()
        assert {name: tensor.tolist() for name, tensor in inputs.items()} == {
            "X": [[1], [0], [3]],
            "SUM": [[10], [0], [30]],
            "START": [[0], [0], [0]],
            "END": [[False], [False], [True]],
            "READY": [[1.0], [0.0], [1.0]],
            "ID": [[10], [0], [30]],
        }
        dtypes = [inputs[name].dtype for name in ("START", "END", "READY", "ID")]
        assert dtypes == [np.int32, np.bool_, np.float32, np.uint64]

    def test_the_state_of_an_empty_slot_survives_a_batch_of_others(self) -> None:
        batcher = batcher_of(STATE)
        for sequence_id in (1, 2):
            batcher.push(request_of(sequence_id, "s"), 0)
        batcher.finished(take(batcher), {"NEXT": np.array([[5], [6]])}, 0)
        batcher.push(request_of(2), 0)
        batcher.finished(take(batcher), {"NEXT": np.array([[-1], [7]])}, 0)
        for sequence_id in (1, 2):
            batcher.push(request_of(sequence_id), 0)
        assert take(batcher).inputs()["SUM"].tolist() == [[5], [7]]

    def test_sequences_spread_over_instances_then_fill_slots(self) -> None:
        batcher = batcher_of("", max_batch_size=2, instances=2)
        for sequence_id in (1, 2, 3, 4):
            batcher.push(request_of(sequence_id, "s"), 0)
        assert [slot_of(batcher, sequence_id) for sequence_id in (1, 2, 3, 4)] == [(0, 0), (1, 0), (0, 1), (1, 1)]

    def test_one_request_of_a_sequence_at_a_time(self) -> None:
        batcher = batcher_of("")
        for value in range(3):
            batcher.push(request_of(1, "s" if value == 0 else "", value), 0)
        batch = take(batcher)
        assert batcher.take(0, 0) is None
        assert batch.inputs()["X"].tolist() == [[0]]
        batcher.finished(batch, None, 0)
        assert take(batcher).inputs()["X"].tolist() == [[1]]

    def test_waits_for_slot_utilization_but_not_longer_than_the_delay(self) -> None:
        batcher = batcher_of("direct { max_queue_delay_microseconds: 100 minimum_slot_utilization: 0.75 }")
        for sequence_id in (1, 2):
            batcher.push(request_of(sequence_id, "s"), 5)
        assert batcher.take(0, 5) is None
        assert batcher.wake_at() == 5 + 100 * MICROSECOND
        assert batcher.take(0, 4 + 100 * MICROSECOND) is None
        assert len(take(batcher, 5 + 100 * MICROSECOND).requests) == 2
        batcher = batcher_of("direct { max_queue_delay_microseconds: 100 minimum_slot_utilization: 0.75 }")
        for sequence_id in (1, 2, 3):
            batcher.push(request_of(sequence_id, "s"), 5)
        assert len(take(batcher, 5).requests) == 3

    def test_shapes_do_not_mix_and_the_oldest_goes_first(self) -> None:
        batcher = batcher_of(CONTROLS)
        for sequence_id, shape_key in ((1, "a"), (2, "b"), (3, "a")):
            batcher.push(request_of(sequence_id, "s", shape_key=shape_key), 0)
        batch = take(batcher)
        assert ids(batch) == [1, 3]
        assert batch.inputs()["READY"].tolist() == [[1], [0], [1]]
        batcher.finished(batch, None, 0)
        batcher.push(request_of(1, shape_key="a"), 0)
        assert ids(take(batcher)) == [2]

    def test_without_a_batch_dimension(self) -> None:
        batcher = batcher_of(CONTROLS + STATE, max_batch_size=0, instances=2)
        for sequence_id in (1, 2, 3):
            batcher.push(request_of(sequence_id, "s", sequence_id, batched=False), 0)
        batch = take(batcher, instance=1)
        assert (ids(batch), batch.rows, batch.row_of(0)) == ([2], 1, 0)
        inputs = batch.inputs()
        assert all(tensor.shape == (1,) for tensor in inputs.values())
        assert (inputs["X"][0], inputs["ID"][0], inputs["START"][0], inputs["SUM"][0]) == (2, 2, 1, 0)
        batcher.finished(batch, {"NEXT": np.array([9])}, 0)
        batcher.push(request_of(2, batched=False), 0)
        assert take(batcher, instance=1).inputs()["SUM"].tolist() == [9]


class TestOldest:
    def test_takes_the_oldest_of_distinct_sequences_densely(self) -> None:
        batcher = batcher_of("oldest { max_candidate_sequences: 5 }" + CONTROLS, max_batch_size=2)
        for sequence_id in (1, 1, 2, 3):
            batcher.push(request_of(sequence_id, "s"), 0)
        batch = take(batcher)
        assert (ids(batch), batch.rows) == ([1, 2], 2)
        assert batch.inputs()["READY"].tolist() == [[1], [1]]
        batcher.finished(batch, None, 0)
        assert ids(take(batcher)) == [1, 3]

    def test_excess_sequences_wait_in_order_for_a_candidate_to_end(self) -> None:
        batcher = batcher_of("oldest { max_candidate_sequences: 1 }")
        for sequence_id in (1, 2, 3):
            batcher.push(request_of(sequence_id, "se"), 0)
        seen = []
        while (batch := batcher.take(0, 0)) is not None:
            seen += ids(batch)
            batcher.finished(batch, None, 0)
        assert seen == [1, 2, 3]

    def test_a_preferred_size_does_not_wait(self) -> None:
        batching = """oldest { max_candidate_sequences: 8 preferred_batch_size: [2, 4]
                      max_queue_delay_microseconds: 10 }"""
        batcher = batcher_of(batching, max_batch_size=8)
        batcher.push(request_of(1, "s"), 0)
        assert batcher.take(0, 0) is None
        assert batcher.wake_at() == 10 * MICROSECOND
        for sequence_id in (2, 3):
            batcher.push(request_of(sequence_id, "s"), 1)
        batch = take(batcher, 1)
        assert ids(batch) == [1, 2]
        batcher.finished(batch, None, 1)
        assert batcher.take(0, 1) is None
        assert ids(take(batcher, 1 + 10 * MICROSECOND)) == [3]

    def test_without_a_delay_nothing_waits(self) -> None:
        batcher = batcher_of("oldest { max_candidate_sequences: 8 preferred_batch_size: 4 }")
        batcher.push(request_of(1, "s"), 0)
        assert len(take(batcher).requests) == 1


class TestLifetime:
    def test_start_on_a_live_sequence_restarts_it_in_its_slot(self) -> None:
        batcher = batcher_of(STATE)
        for sequence_id in (1, 2):
            batcher.push(request_of(sequence_id, "s"), 0)
        batcher.finished(take(batcher), {"NEXT": np.array([[5], [6]])}, 0)
        for sequence_id, flags in ((1, ""), (2, "s")):
            batcher.push(request_of(sequence_id, flags), 0)
        assert take(batcher).inputs()["SUM"].tolist() == [[5], [0]]
        assert slot_of(batcher, 2) == (0, 1)

    def test_an_id_used_again_lines_up_behind_those_who_wait(self) -> None:
        batcher = batcher_of("", max_batch_size=1)
        for sequence_id, flags in ((1, "s"), (1, "e"), (1, "se"), (2, "se")):
            batcher.push(request_of(sequence_id, flags), 0)
        seen = []
        while (batch := batcher.take(0, 0)) is not None:
            seen += ids(batch)
            batcher.finished(batch, None, 0)
        assert seen == [1, 1, 2, 1]

    def test_failure_keeps_slot_and_state(self) -> None:
        batcher = batcher_of(STATE)
        batcher.push(request_of(1, "s"), 0)
        batcher.finished(take(batcher), {"NEXT": np.array([[5]])}, 0)
        batcher.push(request_of(1), 0)
        batcher.failed(take(batcher), 0)
        batcher.push(request_of(1), 0)
        assert take(batcher).inputs()["SUM"].tolist() == [[5]]

    def test_a_failed_end_frees_the_slot(self) -> None:
        batcher = batcher_of("", max_batch_size=1)
        batcher.push(request_of(1, "se"), 0)
        batcher.push(request_of(2, "s"), 0)
        batcher.failed(take(batcher), 0)
        assert slot_of(batcher, 1) is None
        assert ids(take(batcher)) == [2]

    def test_a_batch_is_settled_once(self) -> None:
        batcher = batcher_of("")
        batcher.push(request_of(1, "s"), 0)
        batch = take(batcher)
        batcher.finished(batch, None, 0)
        with pytest.raises(ValueError, match="reported before"):
            batcher.failed(batch, 0)

    @pytest.mark.parametrize(
        ("outputs", "given"),
        [
            (None, "none"),
            ({}, "none"),
            ({"NEXT": np.zeros((2, 1), np.int64)}, r"int64 \[2, 1\]"),
            ({"NEXT": np.zeros((1, 1), np.float32)}, r"float32 \[1, 1\]"),
        ],
    )
    def test_wrong_state_outputs_fail_the_batch(self, outputs: Any, given: str) -> None:
        batcher = batcher_of(STATE)
        batcher.push(request_of(1, "s"), 0)
        with pytest.raises(ModelFailed, match=rf"'NEXT' of model 'm': expected int64 \[1, 1\], given {given}"):
            batcher.finished(take(batcher), outputs, 0)
        batcher.push(request_of(1), 0)
        assert take(batcher).inputs()["SUM"].tolist() == [[0]]

    def test_an_idle_sequence_loses_its_slot_to_the_backlog(self) -> None:
        batcher = batcher_of("max_sequence_idle_microseconds: 50", max_batch_size=1)
        batcher.push(request_of(1, "s"), 0)
        batcher.push(request_of(2, "s"), 0)
        batch = take(batcher)
        # Running is not idle, however long it takes.
        assert batcher.wake_at() is None
        assert batcher.expire(SECOND) == []
        batcher.finished(batch, None, SECOND)
        assert batcher.wake_at() == SECOND + 50 * MICROSECOND
        batcher.expire(SECOND + 50 * MICROSECOND - 1)
        assert slot_of(batcher, 1) == (0, 0)
        batcher.expire(SECOND + 50 * MICROSECOND)
        assert slot_of(batcher, 1) is None
        assert slot_of(batcher, 2) == (0, 0)
        with pytest.raises(InvalidArgument, match="START flag"):
            batcher.push(request_of(1), SECOND)

    def test_a_new_request_ends_idleness(self) -> None:
        batcher = batcher_of("")
        batcher.push(request_of(1, "s"), 0)
        batcher.finished(take(batcher), None, 0)
        assert batcher.wake_at() == SECOND
        batcher.push(request_of(1), SECOND // 2)
        assert batcher.wake_at() is None
        batcher.expire(2 * SECOND)
        assert ids(take(batcher, 2 * SECOND)) == [1]

    def test_a_waiting_sequence_past_a_deadline_is_refused_whole(self) -> None:
        batcher = batcher_of("", max_batch_size=1)
        batcher.push(request_of(1, "s"), 0)
        waiting = [request_of(2, "s", deadline=100), request_of(2)]
        for request in waiting:
            batcher.push(request, 0)
        patient = request_of(3, "s", deadline=200)
        batcher.push(patient, 0)
        assert batcher.expire(99) == []
        take(batcher)
        assert batcher.wake_at() == 100
        refused = batcher.expire(100)
        assert [request for request, _ in refused] == waiting
        assert all(isinstance(error, DeadlineExceeded) for _, error in refused)
        assert refused[0][1].message.startswith("Request timeout expired: sequence 2 of model 'm'")
        assert batcher.wake_at() == 200
        assert batcher.pending() == 1

    def test_a_sequence_that_holds_a_slot_runs_though_expired(self) -> None:
        batcher = batcher_of("")
        late = request_of(1, "s", deadline=10)
        batcher.push(late, 0)
        assert batcher.drop_cancelled(20) == []
        assert take(batcher, 20).requests == (late,)

    def test_a_queued_request_that_is_cancelled_ends_its_sequence(self) -> None:
        batcher = batcher_of("", max_batch_size=1)
        running, gone, behind, last = request_of(1, "s"), request_of(1), request_of(1), request_of(1, "e")
        restarted, other = request_of(1, "s"), request_of(2, "se")
        for request in (running, gone, behind, last, restarted, other):
            batcher.push(request, 0)
        batch = take(batcher)
        # The one that runs is past cancelling; its sequence goes on.
        running.cancelled = gone.cancelled = True
        batcher.finished(batch, None, 1)
        assert batcher.pending() == 5
        # The slot goes to who waited for it: what comes after START under the same id is another sequence.
        assert take(batcher, 1).requests == (other,)
        assert batcher.wake_at() == 0
        refused = batcher.expire(1)
        assert [request for request, _ in refused] == [gone, behind, last]
        assert all(isinstance(error, Cancelled) and "sequence 1 of model 'm'" in str(error) for _, error in refused)
        assert batcher.pending() == 1
        assert slot_of(batcher, 1) is None

    def test_behind_a_cancelled_request_start_is_needed(self) -> None:
        batcher = batcher_of("", max_batch_size=1)
        first = request_of(1, "s")
        batcher.push(first, 0)
        first.cancelled = True
        assert batcher.take(0, 0) is None
        assert [request for request, _ in batcher.expire(0)] == [first]
        with pytest.raises(InvalidArgument, match="must specify the START flag"):
            batcher.push(request_of(1), 1)
        batcher.push(request_of(1, "s"), 1)
        assert take(batcher, 1).requests[0].plan.sequence_start

    def test_a_cancelled_waiting_sequence_is_refused_when_its_turn_comes(self) -> None:
        batcher = batcher_of("", max_batch_size=1)
        batcher.push(request_of(1, "se"), 0)
        gone = request_of(2, "s")
        batcher.push(gone, 0)
        batcher.push(request_of(3, "s"), 0)
        gone.cancelled = True
        batcher.finished(take(batcher), None, 1)
        assert batcher.wake_at() == 0
        ((refused, error),) = batcher.expire(1)
        assert refused is gone
        assert isinstance(error, Cancelled)
        assert slot_of(batcher, 3) == (0, 0)

    def test_cancelled_sequences_give_their_place_in_line_back(self) -> None:
        batcher = batcher_of("", max_batch_size=1)
        batcher.push(request_of(1, "s"), 0)
        gone = request_of(2, "s")
        batcher.push(gone, 0)
        gone.cancelled = True
        assert [request for request, _ in batcher.drop_cancelled(0)] == [gone]
        batcher.push(request_of(3, "s"), 0)
        assert batcher.pending() == 2

    def test_clear_returns_everything_queued_and_lets_batches_settle(self) -> None:
        batcher = batcher_of("", max_batch_size=1)
        running, queued, waiting = request_of(1, "s"), request_of(1), request_of(2, "s")
        batcher.push(running, 0)
        batch = take(batcher)
        batcher.push(queued, 0)
        batcher.push(waiting, 0)
        assert batcher.clear() == [queued, waiting]
        batcher.finished(batch, None, 0)
        assert (batcher.pending(), batcher.wake_at(), batcher.take(0, 0)) == (0, None, None)
        batcher.push(request_of(1, "s"), 0)
        assert ids(take(batcher)) == [1]


MAX_IDLE = 300
IDS = st.integers(1, 7)


class SequenceMachine(RuleBasedStateMachine):
    """Drives a batcher with an accumulator model, and keeps a separate account of each sequence.

    The model adds X to its implicit state. The account knows nothing of slots or batches: only which requests of
    an id are still to run, in order, and the sum a lone sequence would have by now.
    """

    @initialize(
        oldest=st.booleans(),
        instances=st.sampled_from([1, 1, 2]),
        max_batch=st.integers(0, 3),
        candidates=st.integers(1, 4),
        delay=st.sampled_from([0, 40]),
    )
    def configure(self, oldest: bool, instances: int, max_batch: int, candidates: int, delay: int) -> None:
        self.direct, self.instances = not oldest, instances
        self.batched, self.max_rows = max_batch > 0, max(1, max_batch)
        self.slots = instances * (candidates if oldest else self.max_rows)
        strategy = (
            f"oldest {{ max_candidate_sequences: {candidates} max_queue_delay_microseconds: {delay} }}"
            if oldest
            else f"direct {{ max_queue_delay_microseconds: {delay} minimum_slot_utilization: 0.6 }}"
        )
        self.batcher = batcher_of(
            f"max_sequence_idle_microseconds: {MAX_IDLE} {strategy} {CONTROLS} {STATE}",
            max_batch,
            instances,
        )
        self.now = 0
        self.running: dict[int, SequenceBatch] = {}
        #: Per live id: what has not been settled, in the order pushed; the first may be running.
        self.outstanding: dict[int, list[InferRequest]] = {}
        self.ended: dict[int, bool] = {}
        self.sum: dict[int, int] = defaultdict(int)
        self.last_settled: dict[int, int] = {}
        self.place: dict[int, tuple[int, int]] = {}
        #: Ids without a slot, in the order in which they came to be so.
        self.line: list[int] = []
        self.pushed: list[InferRequest] = []
        #: Cancelled with their sequence, and not yet reported.
        self.due: list[InferRequest] = []

    def is_running(self, sequence_id: int) -> bool:
        return any(sequence_id in ids(batch) for batch in self.running.values())

    def queued(self, sequence_id: int) -> int:
        return len(self.outstanding[sequence_id]) - self.is_running(sequence_id)

    def expected_error(self, sequence_id: int, start: bool) -> type[Exception] | None:
        live = sequence_id in self.outstanding
        if not start and (not live or self.ended[sequence_id]):
            return InvalidArgument
        return None

    @rule(
        pushes=st.lists(
            st.tuples(
                IDS,
                st.integers(0, 3),
                st.integers(0, 3),
                st.integers(1, 9),
                st.sampled_from([NEVER, NEVER, NEVER, 100, 500]),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def push(self, pushes: list[tuple[int, int, int, int, int]]) -> None:
        for sequence_id, start, end, value, patience in pushes:
            self.push_one(sequence_id, start, end, value, patience)

    def push_one(self, sequence_id: int, start: int, end: int, value: int, patience: int) -> None:
        # Mostly what a client would do: START first, and now and then a restart or a forgotten START.
        live = sequence_id in self.outstanding and not self.ended[sequence_id]
        starts, ends = (start == 0) if live else (start > 0), end == 0
        deadline = min(NEVER, self.now + patience * MICROSECOND)
        flags = "s" * starts + "e" * ends
        request = request_of(sequence_id, flags, value, deadline=deadline, batched=self.batched)
        error = self.expected_error(sequence_id, starts)
        if error is not None:
            with pytest.raises(error):
                self.batcher.push(request, self.now)
            return
        self.batcher.push(request, self.now)
        if sequence_id not in self.outstanding and slot_of(self.batcher, sequence_id) is None:
            self.line.append(sequence_id)
        self.outstanding.setdefault(sequence_id, []).append(request)
        self.pushed.append(request)
        self.ended[sequence_id] = ends

    @rule(microseconds=st.sampled_from([1, 20, 40, 200, 301]))
    def let_time_pass(self, microseconds: int) -> None:
        self.now += microseconds * MICROSECOND

    @rule(sequence_id=IDS, last=st.booleans())
    def cancel(self, sequence_id: int, last: bool) -> None:
        requests = self.outstanding.get(sequence_id)
        if requests:
            requests[-1 if last else 0].cancelled = True

    @rule(instance=st.integers(0, 1))
    def take(self, instance: int) -> None:
        instance %= self.instances
        places = [(slot_of(self.batcher, sequence_id), sequence_id) for sequence_id in self.outstanding]
        batch = self.batcher.take(instance, self.now)
        if instance in self.running:
            assert batch is None
            return
        ended = sorted(
            (place, sequence_id)
            for place, sequence_id in places
            if place is not None and place[0] == instance and self.next_is_cancelled(sequence_id)
        )
        for _, sequence_id in ended:
            self.end_cancelled(sequence_id)
        if batch is not None:
            self.check_batch(batch, instance)
            self.running[instance] = batch
        if ended:
            self.expire(sweep=False)

    def next_is_cancelled(self, sequence_id: int) -> bool:
        requests = self.outstanding[sequence_id]
        return bool(requests) and requests[0].cancelled

    def end_cancelled(self, sequence_id: int) -> None:
        requests = self.outstanding[sequence_id]
        whole = 1
        while whole < len(requests) and not requests[whole].plan.sequence_start:
            whole += 1
        self.due += requests[:whole]
        del requests[:whole]
        self.place.pop(sequence_id, None)
        if requests:
            self.line_up_again(sequence_id)
        else:
            self.forget(sequence_id)

    def check_batch(self, batch: SequenceBatch, instance: int) -> None:
        assert 1 <= len(batch.requests) <= batch.rows <= self.max_rows
        assert len(set(ids(batch))) == len(batch.requests)
        rows = [batch.row_of(index) for index in range(len(batch.requests))]
        inputs = batch.inputs()
        assert all(tensor.shape == ((batch.rows, 1) if self.batched else (1,)) for tensor in inputs.values())
        column = {name: tensor.reshape(-1).tolist() for name, tensor in inputs.items()}
        assert [row for row in range(batch.rows) if column["READY"][row]] == rows
        for row in set(range(batch.rows)) - set(rows):
            assert {column[name][row] for name in column} == {0}
        for row, request in zip(rows, batch.requests, strict=True):
            plan, sequence_id = request.plan, int(request.plan.sequence_id)
            assert request is self.outstanding[sequence_id][0]
            assert not self.is_running(sequence_id)
            if plan.sequence_start:
                self.sum[sequence_id] = 0
            assert column["ID"][row] == sequence_id
            assert column["START"][row] == plan.sequence_start
            assert column["END"][row] == plan.sequence_end
            assert column["X"][row] == request.inputs["X"].item()
            assert column["SUM"][row] == self.sum[sequence_id]
            place = slot_of(self.batcher, sequence_id)
            assert place is not None
            assert place[0] == instance
            if self.direct:
                assert place[1] == row
            assert self.place.setdefault(sequence_id, place) == place
        if self.direct:
            return
        assert rows == list(range(batch.rows))
        left = [
            requests[0]
            for sequence_id, requests in self.outstanding.items()
            if requests
            and requests[0] not in batch.requests
            and (place := slot_of(self.batcher, sequence_id)) is not None
            and place[0] == instance
        ]
        # Those left behind came later than any that run.
        last = max(map(self.pushed.index, batch.requests))
        assert all(self.pushed.index(request) > last for request in left)

    @rule(instance=st.integers(0, 1))
    def serve(self, instance: int) -> None:
        self.take(instance)
        if self.running:
            self.settle(choice=instance, ok=1)

    @precondition(lambda self: self.running)
    @rule(choice=st.integers(0, 1), ok=st.integers(0, 4))
    def settle(self, choice: int, ok: int) -> None:
        instance = sorted(self.running)[choice % len(self.running)]
        batch = self.running.pop(instance)
        if ok:
            inputs = batch.inputs()
            total = inputs["SUM"] + inputs["X"]
            # A model may write anything into rows that were not ready.
            total[inputs["READY"] == 0] = 999
            self.batcher.finished(batch, {"NEXT": total, "OTHER": total}, self.now)
        else:
            self.batcher.failed(batch, self.now)
        for request in batch.requests:
            sequence_id = int(request.plan.sequence_id)
            assert self.outstanding[sequence_id].pop(0) is request
            self.last_settled[sequence_id] = self.now
            if ok:
                self.sum[sequence_id] += request.inputs["X"].item()
            if request.plan.sequence_end:
                del self.place[sequence_id]
                if self.outstanding[sequence_id]:
                    self.line_up_again(sequence_id)
                else:
                    self.forget(sequence_id)
        self.expire(sweep=False)

    def line_up_again(self, sequence_id: int) -> None:
        # It got its slot and lost it within one rule: its earlier place in the line is void.
        if sequence_id in self.line:
            self.line.remove(sequence_id)
        self.line.append(sequence_id)

    def forget(self, sequence_id: int) -> None:
        del self.outstanding[sequence_id], self.ended[sequence_id]
        self.place.pop(sequence_id, None)
        if sequence_id in self.line:
            self.line.remove(sequence_id)

    @rule(sweep=st.booleans())
    def expire(self, sweep: bool) -> None:
        idle = [
            sequence_id
            for sequence_id, requests in self.outstanding.items()
            if not requests and self.last_settled[sequence_id] + MAX_IDLE * MICROSECOND <= self.now
        ]
        refused = (self.batcher.drop_cancelled if sweep else self.batcher.expire)(self.now)
        for sequence_id in idle:
            assert slot_of(self.batcher, sequence_id) is None
            self.forget(sequence_id)
        by_id: dict[int, list[InferRequest]] = defaultdict(list)
        assert [request for request, _ in refused[: len(self.due)]] == self.due
        refused = refused[len(self.due) :]
        self.due = []
        for request, error in refused:
            by_id[int(request.plan.sequence_id)].append(request)
            assert isinstance(error, Cancelled | DeadlineExceeded)
        for sequence_id, requests in by_id.items():
            assert requests == self.outstanding[sequence_id]
            assert requests[0].plan.sequence_start
            assert sequence_id not in self.place
            assert any(request.cancelled or request.deadline <= self.now for request in requests)
            self.forget(sequence_id)
        for sequence_id, requests in self.outstanding.items():
            if slot_of(self.batcher, sequence_id) is None:
                assert all(request.deadline > self.now for request in requests)
                assert not (sweep and any(request.cancelled for request in requests))

    @invariant()
    def one_slot_is_one_sequence_and_none_is_left_empty(self) -> None:
        if not hasattr(self, "batcher"):
            return
        places = [slot_of(self.batcher, sequence_id) for sequence_id in self.outstanding]
        held = [place for place in places if place is not None]
        assert len(set(held)) == len(held) <= self.slots
        assert len(held) == min(len(places), self.slots)
        assert self.batcher.pending() == sum(map(self.queued, self.outstanding))
        # Sequences with a slot arrived before those that wait.
        waiting = [sequence_id for sequence_id in self.line if slot_of(self.batcher, sequence_id) is None]
        assert waiting == self.line[len(self.line) - len(waiting) :]
        self.line = waiting

    def teardown(self) -> None:
        """Left alone, a batcher runs or refuses everything, and wakes its shell when something is due."""
        if not hasattr(self, "batcher"):
            return
        for _ in range(1000):
            self.expire(sweep=False)
            for instance in range(self.instances):
                self.take(instance)
            if self.running:
                self.settle(choice=0, ok=1)
                continue
            wake_at = self.batcher.wake_at()
            if wake_at is None:
                break
            assert wake_at > self.now
            self.now = wake_at
        assert not self.outstanding
        assert self.batcher.pending() == 0


TestSequenceMachine = SequenceMachine.TestCase
TestSequenceMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None, derandomize=True)
