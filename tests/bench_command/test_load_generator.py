"""The generator over a sender that the test controls: what counts from when, and what ends a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
import uvloop

from isochrone.bench.generator import Generator
from isochrone.bench.results.outcomes import FAILED, LATE, OK, REJECTED, UNSENT, Outcomes
from isochrone.bench.sending.preparing import PreparedKind
from isochrone.bench.sending.sender import Done
from isochrone.bench.workload.mix import Kind, Sequences
from isochrone.clock import MILLISECOND, SECOND, now_ns

Answer = Callable[["FakeTicket"], None]


class FakeTicket:
    def __init__(self, request: Any, done: Done) -> None:
        self.request = request
        self.done = done
        self.is_cancelled = False

    def answer(self, outcome: int = OK, error: str = "") -> None:
        if not self.is_cancelled:
            self.done.begun()
            self.done.ended(outcome, error)

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeSender:
    """Calls ``on_send`` for each request."""

    def __init__(self, on_send: Answer, *, is_sent: bool = True) -> None:
        self._on_send = on_send
        self._is_sent = is_sent
        self.tickets: list[FakeTicket] = []

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def send(self, request: Any, done: Done) -> FakeTicket:
        ticket = FakeTicket(request, done)
        self.tickets.append(ticket)
        if self._is_sent:
            done.sent()
        self._on_send(ticket)
        return ticket


def prepared(kind: Kind | None = None, sequences: Sequences | None = None) -> PreparedKind:
    kind = kind or Kind(model="m")
    return PreparedKind(kind, ["request"], lambda number, parameters: dict(parameters), sequences)


def run(
    sender: FakeSender,
    *,
    instants: list[int] | None = None,
    in_flight: int = 0,
    kind: PreparedKind | None = None,
    choices: Iterator[int] | None = None,
    warmup_ns: int = 0,
    window_ns: int = 100 * MILLISECOND,
    timeout_ns: int = 60 * SECOND,
    during: Callable[[Generator], None] | None = None,
) -> Outcomes:
    async def measured() -> Outcomes:
        generator = Generator(
            sender,
            [kind or prepared()],
            choices or repeat(0),
            start=now_ns(),
            warmup_ns=warmup_ns,
            window_ns=window_ns,
            timeout_ns=timeout_ns,
        )
        if during is not None:
            during(generator)
        if instants is not None:
            await generator.run_open_loop([np.array(instants, np.int64)])
        else:
            await generator.run_closed_loop(in_flight)
        return generator.recorder.outcomes()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measured())


def test_latencies_count_from_the_intended_instant_while_the_server_stalls() -> None:
    """Nothing is answered until every request was sent: the first ones have waited longest, by their intervals."""

    def on_send(ticket: FakeTicket) -> None:
        if len(sender.tickets) == 20:
            for each in sender.tickets:
                each.answer()

    sender = FakeSender(on_send)
    instants = [number * MILLISECOND for number in range(20)]
    outcomes = run(sender, instants=instants)
    assert outcomes.intended_ns.tolist() == instants, "sent whatever is in flight"
    assert (outcomes.outcome == OK).all()
    latencies = outcomes.ended_ns - outcomes.intended_ns
    # All ended after the last one was due.
    assert (latencies >= outcomes.intended_ns[-1] - outcomes.intended_ns).all()
    assert (outcomes.sent_ns >= outcomes.intended_ns).all(), "never early"


def test_a_request_that_is_never_sent_counts() -> None:
    sender = FakeSender(lambda ticket: None, is_sent=False)
    outcomes = run(sender, instants=[0, MILLISECOND], timeout_ns=20 * MILLISECOND)
    assert outcomes.outcome.tolist() == [UNSENT, UNSENT]
    assert all(ticket.is_cancelled for ticket in sender.tickets)
    assert (outcomes.ended_ns - outcomes.intended_ns >= 20 * MILLISECOND).all()


def test_a_request_without_an_answer_fails_after_the_timeout() -> None:
    sender = FakeSender(lambda ticket: None if len(sender.tickets) == 1 else ticket.answer())
    outcomes = run(sender, instants=[0, MILLISECOND, 2 * MILLISECOND], timeout_ns=30 * MILLISECOND)
    assert outcomes.outcome.tolist() == [FAILED, OK, OK]
    assert sender.tickets[0].is_cancelled
    assert outcomes.first_ns[0] == -1


def test_answers_after_the_deadline_are_late() -> None:
    def later(ticket: FakeTicket) -> None:
        asyncio.get_running_loop().call_later(0.01, ticket.answer)

    kind = prepared(Kind(model="m", deadline_ms=1))
    assert run(FakeSender(later), instants=[0], kind=kind).outcome.tolist() == [LATE]
    rejected = FakeSender(lambda ticket: ticket.answer(REJECTED, "full"))
    assert run(rejected, instants=[0], kind=kind).outcome.tolist() == [REJECTED]


def test_the_warm_up_does_not_count() -> None:
    sender = FakeSender(lambda ticket: ticket.answer())
    instants = [number * MILLISECOND for number in range(30)]
    outcomes = run(sender, instants=instants, warmup_ns=10 * MILLISECOND, window_ns=20 * MILLISECOND)
    assert len(sender.tickets) == 30
    assert outcomes.intended_ns.tolist() == instants[:20]


def test_a_closed_loop_keeps_its_number_in_flight() -> None:
    most = [0]
    open_tickets: set[FakeTicket] = set()

    def on_send(ticket: FakeTicket) -> None:
        open_tickets.add(ticket)
        most[0] = max(most[0], len(open_tickets))

        def end() -> None:
            open_tickets.discard(ticket)
            ticket.answer()

        asyncio.get_running_loop().call_soon(end)

    sender = FakeSender(on_send)
    outcomes = run(sender, in_flight=5, window_ns=50 * MILLISECOND)
    assert most[0] == 5
    assert len(outcomes) > 5
    assert len(outcomes) == len(sender.tickets), "each was recorded, the last ones too"
    within = outcomes.sent_ns < 50 * MILLISECOND
    assert (outcomes.intended_ns == outcomes.sent_ns)[within].all()


def test_a_failing_server_is_not_asked_without_pause() -> None:
    sender = FakeSender(lambda ticket: ticket.answer(FAILED, "refused"))
    outcomes = run(sender, in_flight=2, window_ns=50 * MILLISECOND)
    assert outcomes.outcome.tolist() == [FAILED, FAILED], "the pause is longer than this window"


def test_sequences_go_on_after_answers_alone() -> None:
    def on_send(ticket: FakeTicket) -> None:
        is_failed = ticket.request["sequence_id"] == 7 and len(sender.tickets) == 2
        ticket.answer(FAILED if is_failed else OK, "broke" if is_failed else "")

    sender = FakeSender(on_send)
    run(sender, instants=[0, 1, 2, 3, 4], kind=prepared(sequences=Sequences(2, 7)))
    sent = [(each.request["sequence_id"], each.request["sequence_start"]) for each in sender.tickets]
    assert sent == [(7, True), (7, False), (8, True), (8, False), (9, True)]


def test_an_interrupted_run_has_what_was_measured() -> None:
    """Stopped before the fifth request is due; one is still in flight then, and ends after it."""
    held: list[FakeTicket] = []
    running: list[Generator] = []

    def on_send(ticket: FakeTicket) -> None:
        if len(sender.tickets) == 3:
            held.append(ticket)
        else:
            ticket.answer()
        if len(sender.tickets) == 4:
            running[0].stop(running[0].recorder.begins + 3_500_000)
            asyncio.get_running_loop().call_soon(held[0].answer)

    sender = FakeSender(on_send)
    instants = [number * MILLISECOND for number in range(20_000)]
    outcomes = run(sender, instants=instants, window_ns=20 * SECOND, during=running.append)
    assert outcomes.intended_ns.tolist() == instants[:4]
    assert outcomes.outcome.tolist() == [OK] * 4
    assert running[0].measured_seconds() == 0.0035


def test_what_an_interrupted_run_waits_for_in_vain_has_no_outcome() -> None:
    """The server may still have answered it: neither a failure nor an answer is known."""
    running: list[Generator] = []
    sender = FakeSender(lambda ticket: running[0].stop(running[0].recorder.begins + MILLISECOND))
    outcomes = run(sender, instants=[0, SECOND], window_ns=20 * SECOND, during=running.append)
    assert len(outcomes) == 0
    assert running[0].recorder.errors == {}
    assert running[0].recorder.unfinished == 1
    assert sender.tickets[0].is_cancelled


def test_an_interruption_ends_the_window_at_its_instant_for_all_generators() -> None:
    """The order comes late: what was recorded after its instant is not in the window, and its errors are not."""
    running: list[Generator] = []

    def on_send(ticket: FakeTicket) -> None:
        ticket.answer(FAILED, f"error {len(sender.tickets)}")
        if len(sender.tickets) == 6:
            generator = running[0]
            generator.stop(generator.recorder.begins + 3 * MILLISECOND)

    sender = FakeSender(on_send)
    instants = [number * MILLISECOND for number in range(20)]
    outcomes = run(sender, instants=instants, window_ns=20 * SECOND, during=running.append)
    assert outcomes.intended_ns.tolist() == instants[:3]
    assert running[0].recorder.errors == {f"error {number}": 1 for number in (1, 2, 3)}
    assert running[0].measured_seconds() == 0.003


def test_requests_that_are_due_before_an_interruption_are_sent_or_counted() -> None:
    """A generator that is behind: the window ends after 20 requests, of which three were sent."""
    running: list[Generator] = []

    def on_send(ticket: FakeTicket) -> None:
        ticket.answer()
        if len(sender.tickets) == 3:
            generator = running[0]
            generator.stop(generator.recorder.begins + 20 * MILLISECOND)

    sender = FakeSender(on_send)
    instants = [number * MILLISECOND for number in range(1000)]
    outcomes = run(sender, instants=instants, window_ns=20 * SECOND, during=running.append)
    assert len(outcomes) + running[0].recorder.unfinished == 20


def test_answers_of_the_warm_up_that_come_in_the_window_are_kept_apart() -> None:
    """Latency of 20 ms: the requests of the last 20 ms of the warm-up are answered in the window."""
    held: list[Generator] = []

    def later(ticket: FakeTicket) -> None:
        asyncio.get_running_loop().call_later(0.02, ticket.answer)

    instants = [number * 5 * MILLISECOND for number in range(20)]
    outcomes = run(
        FakeSender(later),
        instants=instants,
        warmup_ns=50 * MILLISECOND,
        window_ns=50 * MILLISECOND,
        during=held.append,
    )
    carried = held[0].recorder.carried()
    assert len(outcomes) == 10
    assert (carried.intended_ns < 0).all()
    assert ((carried.ended_ns >= 0) & (carried.ended_ns < 50 * MILLISECOND)).all()
    assert len(carried) >= 3


def test_a_generator_that_stood_still_says_so() -> None:
    held: list[Generator] = []

    def stall(ticket: FakeTicket) -> None:
        time.sleep(0.4)
        ticket.answer()

    run(FakeSender(stall), instants=[0], window_ns=20 * SECOND, during=held.append)
    ((begins, ends),) = held[0].recorder.stalls
    assert ends - begins >= 350 * MILLISECOND
    assert begins < 50 * MILLISECOND


def test_only_streams_have_first_tokens() -> None:
    sender = FakeSender(lambda ticket: ticket.answer())
    assert run(sender, instants=[0]).first_ns.tolist() == [-1]
    assert run(sender, instants=[0], kind=prepared(Kind(model="m", stream=True))).first_ns[0] >= 0
