"""Flow control as a model: whatever the sizes, windows, pauses and resets, every byte arrives or its stream fails with
a reason, no end ever stops reading, no memory stays held, and nothing is stuck.

``make soak`` runs it over 2,000 examples of 100 steps each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flow_pipes import Network
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from wire_fakes import RecordingReceiver

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.http2 import frames
from isochrone.wire.http2.client import ClientStream, request_block
from isochrone.wire.http2.sending import FrameSender

PATTERN = bytes(index * 7 % 251 for index in range(120_000))
#: Most of all, sizes around windows and frames.
SIZES = st.one_of(
    st.integers(0, 300), st.sampled_from([9_999, 10_000, 10_001, 16_384, 16_385, 40_000, 65_536, 120_000])
)
WINDOWS = st.sampled_from([0, 1, 500, 5_000, 10_000])
AMOUNTS = st.sampled_from([1, 9, 10, 500, 3_000, 100_000])
BLOCK = request_block(b"POST", b"http", b"test", b"/large", ())
SERVER = WireLimits(
    stream_window=10_000, connection_window=70_000, max_streams=12, max_body_bytes=130_000, max_buffered_bytes=400_000
)
CLIENT = WireLimits(stream_window=10_000, connection_window=70_000)


#: What the last run of the model did.
STEPS = {"examples": 0, "steps": 0}


class Asked:
    """One request, as the client sees it."""

    def __init__(self, stream: ClientStream, receiver: RecordingReceiver, size: int) -> None:
        self.stream = stream
        self.receiver = receiver
        self.size = size
        self.cancelled = False

    @property
    def is_over(self) -> bool:
        return self.cancelled or self.receiver.is_complete or self.receiver.error is not None


class FlowMachine(RuleBasedStateMachine):
    """A client and a server of ours, and the network between them."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(SERVER, CLIENT)
        STEPS["examples"] += 1
        self.asked: list[Asked] = []
        #: Exchanges the server has answered, in part or whole, and what it sends in pieces.
        self.answered = 0
        self.producing: list[tuple[Any, int]] = []

    # The client.

    @precondition(lambda self: len(self.asked) < 40)
    @rule(size=SIZES)
    def ask(self, size: int) -> None:
        receiver = RecordingReceiver()
        stream = self.network.client.open(BLOCK, [PATTERN[:size]] if size else [], receiver)
        self.asked.append(Asked(stream, receiver, size))
        self.network.turn()

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 100))
    def hold(self, which: int) -> None:
        self.asked[which % len(self.asked)].stream.hold_window()

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 100))
    def release(self, which: int) -> None:
        self.asked[which % len(self.asked)].stream.release_window()
        self.network.turn()

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 100))
    def cancel(self, which: int) -> None:
        one = self.asked[which % len(self.asked)]
        if not one.is_over:
            one.cancelled = True
            one.stream.cancel()
            self.network.turn()

    @rule(window=WINDOWS)
    def change_window(self, window: int) -> None:
        """The client allows another window for every stream; its own count of what came goes by the larger one."""
        self.network.client.put(frames.settings_frame({frames.SETTINGS_INITIAL_WINDOW_SIZE: window}))
        self.network.turn()

    # The server.

    @property
    def _unanswered(self) -> int:
        return len(self.network.route.exchanges) - self.answered

    @precondition(lambda self: self._unanswered)
    @rule(size=SIZES)
    def answer(self, size: int) -> None:
        exchange: Any = self.network.route.exchanges[self.answered]
        self.answered += 1
        exchange.respond(200, ((b"x-size", b"%d" % size),), [PATTERN[: size // 3], PATTERN[size // 3 : size]])
        self.network.turn()

    @precondition(lambda self: self._unanswered)
    @rule(size=SIZES)
    def begin_answer(self, size: int) -> None:
        exchange: Any = self.network.route.exchanges[self.answered]
        self.answered += 1
        exchange.start(200, ((b"x-size", b"%d" % size),))
        self.producing.append((exchange, size))
        self._produce(len(self.producing) - 1, size // 2)

    @precondition(lambda self: self.producing)
    @rule(which=st.integers(0, 100), amount=AMOUNTS)
    def resume(self, which: int, amount: int) -> None:
        self._produce(which % len(self.producing), amount)

    def _produce(self, index: int, amount: int) -> None:
        exchange, left = self.producing[index]
        size = int(exchange_size(exchange, left))
        start = size - left
        amount = min(amount, left)
        exchange.write([PATTERN[start : start + amount]])
        left -= amount
        if left:
            self.producing[index] = (exchange, left)
        else:
            exchange.end()
            del self.producing[index]
        self.network.turn()

    @precondition(lambda self: self.producing)
    @rule(which=st.integers(0, 100))
    def abort(self, which: int) -> None:
        exchange, _ = self.producing.pop(which % len(self.producing))
        exchange.abort()
        self.network.turn()

    # The network.

    @rule(to_server=AMOUNTS, to_client=AMOUNTS)
    def move(self, to_server: int, to_client: int) -> None:
        self.network.move(to_server, to_client)

    @rule(amount=AMOUNTS)
    def move_requests(self, amount: int) -> None:
        self.network.move(amount, 0)

    @rule(amount=AMOUNTS)
    def move_answers(self, amount: int) -> None:
        self.network.move(0, amount)

    # What holds at every step, and at the end.

    @invariant()
    def both_read(self) -> None:
        STEPS["steps"] += 1
        assert self.network.server_end.reading
        assert self.network.client_end.reading

    @invariant()
    def memory_adds_up(self) -> None:
        server = self.network.server
        held = sum(stream.unsent + stream.reserved for stream in server.streams.values())
        assert self.network.listener.budget.held == held
        assert server.unsent == sum(stream.unsent for stream in server.streams.values())

    @invariant()
    def what_came_is_what_was_sent(self) -> None:
        for one in self.asked:
            body = one.receiver.body
            if one.receiver.status == 200:
                assert body == PATTERN[: len(body)]

    def teardown(self) -> None:
        """Everybody goes on: then nothing may be left."""
        network = self.network
        network.client.put(frames.settings_frame({frames.SETTINGS_INITIAL_WINDOW_SIZE: CLIENT.stream_window}))
        for one in self.asked:
            one.stream.release_window()
        network.settle(self._answer_all)
        for one in self.asked:
            assert one.is_over, f"stream {one.stream.id} of {one.size} bytes is stuck"
            if one.cancelled or one.receiver.error is not None:
                continue
            if one.receiver.status == 503:
                assert b"max_buffered_bytes" in one.receiver.body
                continue
            assert one.receiver.body == PATTERN[: int(dict(one.receiver.headers)[b"x-size"])]
        for exchange, body in zip(network.route.exchanges, network.route.bodies, strict=True):
            assert body == PATTERN[: len(body)], exchange
        assert not network.client_end.closing
        assert network.server.streams == {}
        assert network.client.streams == {}
        assert network.listener.budget.held == 0
        assert network.client.unsent == 0

    def _answer_all(self) -> None:
        while self.producing:
            self._produce(0, 120_000)
        while self._unanswered:
            self.answer(20_000)


def exchange_size(exchange: Any, left: int) -> int:
    """The whole size of an answer in pieces; kept with the exchange once it is known."""
    if exchange.owner is None:
        exchange.owner = Producer(left)
    return exchange.owner.size


class Producer:
    """Works on an answer."""

    def __init__(self, size: int) -> None:
        self.size = size

    def abandoned(self) -> None:
        pass


def test_flow(record_property: Callable[[str, object], None]) -> None:
    STEPS.update(examples=0, steps=0)
    run_state_machine_as_test(FlowMachine, settings=settings())
    print(f"{STEPS['examples']} examples, {STEPS['steps']} steps")
    record_property("steps", STEPS["steps"])
    assert STEPS["steps"] > settings().max_examples


def deaf_when_full(sender: type[FrameSender], monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender as it was: above a limit it stops reading, and reads on only when half of that has gone."""
    count_queued, resume = sender.count_queued, sender.resume_writing

    def waits_deaf(self: Any, stream: Any, length: int) -> None:
        count_queued(self, stream, length)
        if self.unsent > 30_000 and self.write_paused:
            self.transport.pause_reading()

    def resume_deaf(self: Any) -> None:
        resume(self)
        if self.unsent <= 15_000:
            self.transport.resume_reading()

    monkeypatch.setattr(sender, "count_queued", waits_deaf)
    monkeypatch.setattr(sender, "resume_writing", resume_deaf)


class ReadingMayStop(FlowMachine):
    """The same, without the demand that both ends read at every step: the deadlock has to show by itself."""

    @invariant()
    def both_read(self) -> None:
        pass


@pytest.mark.interpreted
def test_the_model_finds_the_deadlock_of_a_sender_that_stops_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf_when_full(FrameSender, monkeypatch)
    with pytest.raises(AssertionError, match="is stuck"):
        run_state_machine_as_test(
            ReadingMayStop,
            # Found is enough: the smallest example would take a minute.
            settings=settings(max_examples=500, phases=[Phase.generate]),
        )
