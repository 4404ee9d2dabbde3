"""Streams of a led gateway that name more than one model: how messages are stamped, parked and refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from offline import add_members
from tritonclient.grpc import service_pb2

from isochrone.clock import MILLISECOND, NEVER
from isochrone.gateway.fleet.commitment import Commitment
from isochrone.gateway.front.grpc_streams import StreamAttempt, StreamRequest, StreamRoute
from isochrone.gateway.front.known_messages import KnownMessages
from isochrone.gateway.gateway import Gateway
from isochrone.gateway.latencies.version_durations import OUTCOMES
from isochrone.gateway.policies.base import TokenDeadlines
from isochrone.gateway.rules.gateway_rules import GatewayRules, ModelRules
from isochrone.gateway.traffic.quota_rules import QuotaRules
from isochrone.protocol.grpc.routing_fields import name_field, read_opening, version_field
from isochrone.settings.wire_limits import WireLimits
from isochrone.varint import encode_varint
from isochrone.wire.exchange import Head

HEAD = Head(b"POST", b"/inference.GRPCInferenceService/ModelStreamInfer", ((b"content-type", b"application/grpc"),))
SERVES = {
    "m": {"1": "", "2": ""},
    "n": {"1": "", "2": ""},
    "chain": {"1": "", "2": ""},
    "twin": {"1": ""},
}


class Caller:
    """The caller's side of a stream."""

    head = HEAD
    arrived = 0
    owner: Any = None
    on_writable: Any = None
    is_congested = local_done = False

    def __init__(self) -> None:
        self.held = False
        self.ended_with = b""
        self.received = b""
        self.reserved = 0

    def hold_window(self) -> None:
        self.held = True

    def release_window(self) -> None:
        self.held = False

    def reserve(self, size: int) -> bool:
        if self.reserved + size > 1_000_000:
            return False
        self.reserved += size
        return True

    def give_back(self, size: int) -> None:
        self.reserved -= size

    def no_memory(self) -> str:
        return "no memory"

    def send_headers(self, block: bytes, end: bool) -> None: ...

    def send_data(self, data: bytes, end: bool = False) -> None:
        self.received += data

    def end_with_trailers(self, block: bytes) -> None:
        self.ended_with = block


class Worker:
    """The worker's side: connections that are there at once, and a stream that keeps what is sent."""

    on_writable: Any = None

    def __init__(self) -> None:
        self.block = b""
        self.messages: list[tuple[str, str]] = []
        self.is_congested = self.local_done = self.cancelled = False
        self.unsent = 0

    def open_stream(self, block: bytes, body: Any, receiver: Any, *, end: bool) -> Worker:
        self.block = block
        return self

    def send_data(self, data: bytes, end: bool = False) -> None:
        if data:
            opening = read_opening(data, 5)
            tail = data.rpartition(b"\x12\x01")[2]
            self.messages.append((opening.model.decode(), tail.decode() if b"\x12\x01" in data else ""))
        self.local_done |= end

    def cancel(self) -> None:
        self.cancelled = True

    def close(self) -> None: ...


def committed(epoch: int, **versions: str) -> Mapping[str, Commitment]:
    stages = {"chain": {"1": b"m=1", "2": b"m=2"}, "twin": {"1": b"m=1"}}
    return {
        name: Commitment(epoch, versions.get(name, "1"), digests, stages=stages.get(name, {}))
        for name, digests in SERVES.items()
    }


class Bench:
    """A gateway, one stream through it, and both its ends."""

    def __init__(self, *, led: bool = True, rules: GatewayRules | None = None) -> None:
        self.gateway = Gateway(rules or GatewayRules(), WireLimits(), seed=1)
        self.fleet = self.gateway.fleet
        add_members(self.fleet, SERVES)
        if led:
            self.fleet.lead()
            self.fleet.commit(1, committed(1))
        self.worker, self.caller = Worker(), Caller()
        self.fleet.members["a:1"].connections = self.worker  # type: ignore[assignment]
        self.stream = StreamRequest(StreamRoute(self.gateway, HEAD, KnownMessages()), self.caller)  # type: ignore[arg-type]

    def say(self, model: str, version: str = "", size: int = 0, **parameters: float | str) -> None:
        message = name_field(model) + (version_field(version) if version else b"")
        if parameters:
            extra = service_pb2.ModelInferRequest()
            for key, value in parameters.items():
                kinds: dict[type, str] = {int: "int64_param", float: "double_param", str: "string_param"}
                setattr(extra.parameters[key], kinds[type(value)], value)
            message += extra.SerializeToString()
        if size:
            message += b"\x3a" + encode_varint(size) + bytes(size)
        self.stream.data_received(b"\0" + len(message).to_bytes(4, "big") + message)

    def switch(self, **versions: str) -> None:
        self.fleet.commit(2, committed(2, **versions))
        self.gateway.release()


@pytest.mark.parametrize(
    ("parameters", "first_ms", "between_ms"),
    [
        ({"time_to_first_token_ms": 200, "inter_token_ms": 12.5}, 200, 12.5),
        ({"time_to_first_token_ms": "200"}, 200, 0),
        ({"inter_token_ms": 5, "priority": 2}, 0, 5),
    ],
)
def test_deadlines_of_tokens_of_the_first_message_are_part_of_the_demand(
    parameters: dict[str, float | str], first_ms: float, between_ms: float
) -> None:
    bench = Bench()
    bench.say("m", **parameters)
    demand = bench.stream.demand
    first_by = bench.stream.arrived + first_ms * MILLISECOND if first_ms else NEVER
    assert demand.tokens == TokenDeadlines(int(first_by), int(between_ms * MILLISECOND))
    assert (demand.deadline, demand.priority) == (NEVER, parameters.get("priority", 0))
    assert bench.worker.messages == [("m", "1")]


@pytest.mark.parametrize("value", [0, -1, 1e10, "soon"])
def test_a_stream_without_deadlines_of_tokens_that_a_worker_would_take_is_any_other(value: float | str) -> None:
    bench = Bench()
    bench.say("m", inter_token_ms=value)
    assert bench.stream.demand.tokens is None
    assert bench.worker.messages == [("m", "1")]


def test_a_second_model_waits_for_its_switch_and_gets_the_new_version() -> None:
    bench = Bench()
    bench.say("m")
    bench.fleet.hold(["n"])
    bench.say("n")
    bench.say("m")
    assert bench.worker.messages == [("m", "1")], "what comes behind it waits too, so that the order stays"
    assert bench.caller.held
    bench.stream.ended()
    assert not bench.worker.local_done
    bench.switch(n="2")
    assert bench.worker.messages == [("m", "1"), ("n", "2"), ("m", "1")]
    assert not bench.caller.held
    assert bench.worker.local_done


def test_a_model_the_stream_was_admitted_with_goes_on_during_its_switch() -> None:
    bench = Bench()
    bench.say("m")
    bench.say("n")
    bench.fleet.hold(["m", "n"])
    bench.say("n")
    bench.say("m")
    bench.switch(m="2", n="2")
    bench.say("n")
    assert bench.worker.messages == [("m", "1"), ("n", "1"), ("n", "1"), ("m", "1"), ("n", "1")]


def test_a_message_that_names_its_version_does_not_admit_those_that_name_none() -> None:
    bench = Bench()
    bench.say("m", "1")
    bench.fleet.hold(["m"])
    bench.say("m", "1")
    bench.say("m")
    assert bench.worker.messages == [("m", "1"), ("m", "1")]
    bench.switch(m="2")
    assert bench.worker.messages[2:] == [("m", "2")]


def test_the_windows_of_both_sides_do_not_open_while_something_waits() -> None:
    bench = Bench()
    bench.worker.is_congested = True
    bench.say("m")
    bench.fleet.hold(["n"])
    bench.say("n")
    bench.worker.on_writable()
    assert bench.caller.held
    bench.switch(n="2")
    assert bench.caller.held, "the worker is still slow"
    bench.worker.is_congested = False
    bench.worker.on_writable()
    assert not bench.caller.held


def test_messages_are_held_until_they_have_gone_to_a_worker_that_answers() -> None:
    bench = Bench(led=False)
    bench.say("m", size=300_000)
    # Another worker would need it, if this one never began.
    assert bench.caller.reserved >= 300_000
    (attempt,) = bench.stream.attempts
    assert isinstance(attempt, StreamAttempt)
    attempt.head(200, ((b"content-type", b"application/grpc"),))
    assert bench.caller.reserved == 0
    bench.worker.unsent = 300_000
    bench.say("m", size=300_000)
    assert bench.caller.reserved >= 300_000
    bench.say("m", size=500_000)
    assert bench.caller.reserved >= 800_000
    bench.worker.unsent = 0
    bench.worker.on_writable()
    assert bench.caller.reserved == 0
    # Those that wait for a switch of versions, too.
    bench.fleet.hold(["n"])
    bench.say("n", size=300_000)
    assert bench.caller.reserved >= 300_000
    bench.gateway.release()
    assert bench.caller.reserved == 0
    bench.worker.unsent = 1
    bench.say("m", size=600_000)
    bench.say("m", size=600_000)
    assert b"no memory" in bench.caller.ended_with


def test_a_stream_that_is_refused_while_it_waits_ends() -> None:
    bench = Bench()
    bench.say("m")
    bench.fleet.hold(["n"])
    bench.say("n")
    bench.gateway.reject_held("it takes too long")
    assert b"it takes too long" in bench.caller.ended_with
    assert bench.worker.cancelled
    bench.switch(n="2")
    assert bench.worker.messages == [("m", "1")]


@pytest.mark.parametrize("version", ["", "1"])
def test_an_ensemble_needs_a_stream_of_its_own(version: str) -> None:
    bench = Bench()
    bench.say("m")
    bench.say("chain", version)
    assert b"open another stream" in bench.caller.ended_with
    assert bench.worker.cancelled
    assert bench.worker.messages == [("m", "1")]


def test_an_ensemble_that_came_first_is_told_its_stages() -> None:
    bench = Bench()
    bench.say("chain")
    bench.say("m")
    bench.say("twin")
    bench.switch(chain="2")
    bench.say("chain")
    assert b"m=1" in bench.worker.block
    assert not bench.caller.ended_with
    assert bench.worker.messages == [("chain", "1"), ("m", "1"), ("twin", "1"), ("chain", "1")]
    bench.say("chain", "2")
    assert b"open another stream" in bench.caller.ended_with


def test_a_version_that_is_not_committed_is_refused_wherever_it_is_named() -> None:
    bench = Bench()
    bench.say("m")
    bench.say("n", "9")
    assert b"version 9 is not found" in bench.caller.ended_with


def test_what_is_committed_is_stamped_whatever_the_worker_serves() -> None:
    bench = Bench()
    bench.say("m")
    member = bench.fleet.members["a:1"]
    member.serves = {**SERVES, "n": {"2": ""}}
    bench.fleet.rebuild()
    bench.say("n")
    assert bench.worker.messages == [("m", "1"), ("n", "1")], "its newest may be what is only being prepared"


def test_without_a_control_plane_messages_go_by_what_the_worker_serves() -> None:
    bench = Bench(led=False)
    bench.say("m")
    bench.say("n")
    bench.say("n", "9")
    bench.say("chain")
    bench.say("unheard of")
    assert bench.worker.messages == [("m", "2"), ("n", "2"), ("n", "9"), ("chain", "2"), ("unheard of", "")]
    assert not bench.caller.ended_with


ANSWER_HEADERS = ((b"content-type", b"application/grpc"),)


def quota(**rules: Any) -> GatewayRules:
    return GatewayRules(defaults=ModelRules(quota=QuotaRules(**rules)))


def attempt_of(bench: Bench) -> StreamAttempt:
    (attempt,) = bench.stream.attempts
    assert isinstance(attempt, StreamAttempt)
    return attempt


def test_a_message_over_its_quota_is_answered_and_the_stream_goes_on() -> None:
    bench = Bench(led=False, rules=quota(rate=1e-9, burst=2))
    for _ in range(3):
        bench.say("m")
    assert len(bench.worker.messages) == 2
    assert b"requests per second" in bench.caller.received
    assert not bench.caller.ended_with


def test_an_answer_of_ours_never_stands_inside_one_of_the_worker() -> None:
    bench = Bench(led=False, rules=quota(rate=1e-9, burst=1))
    bench.say("m")
    attempt = attempt_of(bench)
    attempt.head(200, ANSWER_HEADERS)
    whole = b"\0" + (10).to_bytes(4, "big") + b"0123456789"
    attempt.data(whole[:3])
    bench.say("m")
    assert bench.caller.received == whole[:3]
    attempt.data(whole[3:9])
    attempt.data(whole[9:])
    assert bench.caller.received.startswith(whole)
    assert b"requests per second" in bench.caller.received[len(whole) :]


def test_a_caller_that_asks_too_much_and_does_not_read_is_ended() -> None:
    bench = Bench(led=False, rules=quota(rate=1e-9, burst=1))
    bench.say("m")
    bench.caller.is_congested = True
    bench.say("m")
    assert b"requests per second" in bench.caller.ended_with
    assert bench.worker.cancelled


def test_messages_of_a_stream_share_the_place_of_their_stream() -> None:
    bench = Bench(led=False, rules=quota(concurrency=1))
    for _ in range(3):
        bench.say("m")
    assert len(bench.worker.messages) == 3


def test_messages_are_charged_to_the_model_that_they_name() -> None:
    limited = ModelRules(quota=QuotaRules(rate=1e-9, burst=1))
    bench = Bench(led=False, rules=GatewayRules(models={"n": limited}))
    for name in ("m", "m", "n", "n", "m"):
        bench.say(name)
    assert [model for model, _ in bench.worker.messages] == ["m", "m", "n", "m"]


def test_a_call_that_ends_at_once_after_an_answer_of_ours_keeps_its_status() -> None:
    bench = Bench(led=False, rules=quota(rate=1e-9, burst=1))
    bench.say("m")
    bench.say("m")
    attempt = attempt_of(bench)
    attempt.head(200, (*ANSWER_HEADERS, (b"grpc-status", b"5"), (b"grpc-message", b"nobody here")))
    attempt.complete(())
    assert b"nobody here" in bench.caller.ended_with
    assert not attempt.foreign


def test_a_stream_that_was_not_begun_goes_to_another_worker() -> None:
    bench = Bench(led=False)
    add_members(bench.fleet, SERVES, SERVES)
    other = Worker()
    for member in bench.fleet.members.values():
        member.connections = other  # type: ignore[assignment]
    bench.say("m")
    attempt = attempt_of(bench)
    rejected = ((b"grpc-status", b"14"), (b"grpc-message", b"full"), (b"x-isochrone-unprocessed", b"1"))
    attempt.head(200, (*ANSWER_HEADERS, *rejected))
    attempt.complete(())
    assert attempt_of(bench) is not attempt
    assert len(other.messages) == 2
    assert not bench.caller.ended_with


def test_a_stream_arrives_with_its_first_message_not_with_its_opening() -> None:
    """Otherwise its idle time would be a latency, and its quotas would be charged in the past."""
    bench = Bench(led=False, rules=quota(rate=1.0, burst=1))
    opened = bench.stream.arrived
    before = bench.gateway.clock()
    bench.say("m")
    assert opened < before <= attempt_of(bench).sent_at
    bench.say("m")
    assert len(bench.worker.messages) == 1, "a second of quota has not passed since the first message"


def outcomes(bench: Bench) -> dict[str, list[int]]:
    """Requests of model m by outcome, and the longest of them in whole buckets."""
    found: dict[str, list[int]] = {}
    for version in bench.fleet.model("m").durations.versions():
        version.fold()
        for name, durations in zip(OUTCOMES, version.of_outcome, strict=True):
            if durations is not None:
                found[name] = [durations.total, durations.sum_ns]
    return found


def test_a_stream_that_the_gateway_ends_is_not_counted_as_cancelled() -> None:
    bench = Bench()
    bench.say("m")
    bench.stream.stopping()
    bench.stream.stopping()
    assert bench.caller.ended_with
    assert {name: count for name, (count, _) in outcomes(bench).items()} == {"rejected": 1}


def test_a_mistake_of_the_caller_in_a_stream_counts_as_answered() -> None:
    bench = Bench()
    bench.say("m")
    bench.stream.data_received(b"\0\0")
    bench.stream.ended()
    assert {name: count for name, (count, _) in outcomes(bench).items()} == {"answered": 1}


@pytest.mark.parametrize("ends", ["caller", "gateway"])
def test_the_time_of_a_stream_is_that_until_its_first_answer_however_it_ends(ends: str) -> None:
    bench = Bench()
    now = bench.gateway.clock()
    bench.gateway.clock = lambda: now
    bench.say("m")
    (attempt,) = bench.stream.attempts
    assert isinstance(attempt, StreamAttempt)
    attempt.head(200, ((b"content-type", b"application/grpc"),))
    now += 3 * MILLISECOND
    attempt.data(b"\0\0\0\0\0")
    now += 3_600_000 * MILLISECOND
    if ends == "caller":
        bench.stream.abandoned()
    else:
        bench.stream.expire()
    expected = "cancelled" if ends == "caller" else "deadline_exceeded"
    assert outcomes(bench) == {expected: [1, 3 * MILLISECOND]}
