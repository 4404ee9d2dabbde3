"""Requests of a remote model: what travels along, other endpoints, failures, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from queued_requests import RecordedRequest, plan_of, rows_of
from tritonclient.grpc import model_config_pb2

from isochrone.client.address import Address
from isochrone.client.answers import Outputs
from isochrone.client.calls import InferCall, make_call
from isochrone.client.grpc.failures import grpc_failure
from isochrone.clock import SECOND, now_ns
from isochrone.errors import (
    ConfigError,
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    IsochroneError,
    NotFound,
    QueueFull,
    Unavailable,
    UnsupportedEncoding,
)
from isochrone.models.signature import signature_of
from isochrone.protocol.compression import zstd
from isochrone.protocol.headers.stages import parse_stages
from isochrone.worker.remote import endpoints
from isochrone.worker.remote.link import Crossing
from isochrone.worker.remote.link_reports import LinkReports
from isochrone.worker.remote.runner import RemoteRunner
from isochrone.worker.remote.settings import RemoteSettings, remote_settings
from isochrone.worker.statistics import ModelStatistics

CONFIG = """
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] }
    max_batch_size: 8
"""

Reply = Callable[[InferCall], Outputs | Exception]


class Endpoint:
    """Another server, in the test's hands."""

    def __init__(self) -> None:
        self.calls: list[tuple[InferCall, float | None]] = []
        self.gate: asyncio.Event | None = None
        self.reply: Reply = lambda call: Outputs({"y": np.array([[2.0]], np.float32)})
        self.ready: bool | Exception = True
        self.closed = False

    async def infer(self, call: InferCall, seconds: float | None) -> Outputs:
        self.calls.append((call, seconds))
        if self.gate is not None:
            await self.gate.wait()
        answer = self.reply(call)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def is_ready(self, model: str, version: str, seconds: float | None) -> bool:
        if isinstance(self.ready, Exception):
            raise self.ready
        return self.ready

    async def close(self) -> None:
        self.closed = True


class Bench:
    """A remote model over two endpoints."""

    def __init__(self, **parameters: str) -> None:
        self.endpoints = [Endpoint(), Endpoint()]
        waiting = iter(self.endpoints)

        def opened(address: Address, settings: RemoteSettings) -> Endpoint:
            return next(waiting)

        config = text_format.Parse(CONFIG, model_config_pb2.ModelConfig())
        settings = remote_settings({"endpoints": "one:8000,two:8000", **parameters}, "m", 3, "config.pbtxt")
        self.ended = 0
        self.statistics = ModelStatistics("m", "3")
        self.runner = RemoteRunner("m", settings, signature_of(config), self.statistics, self._ended, opened)

    def _ended(self) -> None:
        self.ended += 1

    def send(self, **changes: Any) -> RecordedRequest:
        request = RecordedRequest(plan_of(priority=2), {"x": rows_of(1.0)}, now_ns(), **changes)
        self.runner.submit(request)
        return request

    async def settled(self) -> None:
        while self.runner._running:
            await asyncio.wait(set(self.runner._running))


def run(scenario: Callable[[Bench], Awaitable[None]], **parameters: str) -> None:
    async def main() -> None:
        await scenario(Bench(**parameters))

    asyncio.run(main())


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out stays so, however slow the machine is."""
    for name in ("_FIRST_PAUSE", "_LONGEST_PAUSE"):
        monkeypatch.setattr(endpoints, name, 3600 * SECOND)


def test_a_request_travels_with_its_version_deadline_priority_and_id() -> None:
    async def scenario(bench: Bench) -> None:
        request = bench.send(deadline=now_ns() + 5 * SECOND, request_id="r-1")
        await bench.settled()
        ((call, seconds),) = bench.endpoints[0].calls
        assert (call.model, call.version, call.id) == ("m", "3", "r-1")
        assert call.parameters["priority"] == 2
        assert seconds is not None
        assert 0 < seconds <= 5
        assert request.answers[0]["y"] == np.array([[2.0]])
        assert bench.ended == 1
        assert bench.runner.estimated_run() > 0

    run(scenario)


@pytest.mark.parametrize(("given", "sent"), [("7", "7"), ("latest", "")])
def test_another_model_and_version_may_be_named(given: str, sent: str) -> None:
    async def scenario(bench: Bench) -> None:
        bench.send()
        await bench.settled()
        ((call, _),) = bench.endpoints[0].calls
        assert (call.model, call.version) == ("other", sent)

    run(scenario, remote_model="other", remote_version=given)


def test_many_requests_are_under_way_at_the_same_time() -> None:
    async def scenario(bench: Bench) -> None:
        gate = asyncio.Event()
        for endpoint in bench.endpoints:
            endpoint.gate = gate
        requests = [bench.send() for _ in range(10)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [len(endpoint.calls) for endpoint in bench.endpoints] == [5, 5]
        gate.set()
        await bench.settled()
        assert all(len(request.answers) == 1 for request in requests)

    run(scenario)


@pytest.mark.parametrize(
    "failure",
    [
        Unavailable("cannot connect").not_begun(),
        ConnectionLost("the server died"),
        QueueFull("the queue is full").not_begun(),
        NotFound("no such version"),
        UnsupportedEncoding("no package zstandard here"),
    ],
)
def test_another_endpoint_answers_instead(failure: IsochroneError) -> None:
    async def scenario(bench: Bench) -> None:
        bench.endpoints[0].reply = lambda call: failure
        request = bench.send()
        await bench.settled()
        assert isinstance(request.answers[0], dict)
        assert len(bench.endpoints[1].calls) == 1
        assert bench.ended == 1

    run(scenario)


@pytest.mark.parametrize(
    "failure", [InvalidArgument("wrong shape"), DeadlineExceeded("too late"), Unavailable("the model is loading")]
)
def test_an_answer_that_is_an_error_is_the_callers(failure: IsochroneError) -> None:
    async def scenario(bench: Bench) -> None:
        failure.status = "HTTP 4xx"
        bench.endpoints[0].reply = lambda call: failure
        request = bench.send()
        await bench.settled()
        (error,) = request.answers
        assert type(error) is type(failure)
        assert "computed by http://one:8000" in str(error)
        assert not bench.endpoints[1].calls

    run(scenario)


def test_a_request_that_ended_two_servers_is_not_sent_to_a_third() -> None:
    async def scenario(bench: Bench) -> None:
        for endpoint in bench.endpoints:
            endpoint.reply = lambda call: ConnectionLost("the server died")
        request = bench.send()
        await bench.settled()
        (error,) = request.answers
        assert isinstance(error, ConnectionLost)
        assert [len(endpoint.calls) for endpoint in bench.endpoints] == [1, 1]

    run(scenario)


def test_no_endpoint_can_be_reached() -> None:
    async def scenario(bench: Bench) -> None:
        for endpoint in bench.endpoints:
            endpoint.reply = lambda call: Unavailable("cannot connect").not_begun()
        request = bench.send()
        await bench.settled()
        assert isinstance(request.answers[0], Unavailable)
        # The next request tries all the same: a server may be back.
        bench.endpoints[0].reply = bench.endpoints[1].reply = lambda call: Outputs({"y": rows_of(3.0)})
        request = bench.send()
        await bench.settled()
        assert request.answers[0]["y"] == rows_of(3.0)

    run(scenario)


def test_a_passed_deadline_is_not_sent() -> None:
    async def scenario(bench: Bench) -> None:
        request = bench.send(deadline=now_ns() - 1)
        await bench.settled()
        assert isinstance(request.answers[0], DeadlineExceeded)
        assert not bench.endpoints[0].calls

    run(scenario)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({}, "the answer of its endpoint has no output 'y'"),
        ({"y": np.array([[2]], np.int32)}, "is INT32 [1, 1], and config.pbtxt declares FP32 [1] for each of 1 rows"),
        ({"y": np.ones((2, 1), np.float32)}, "is FP32 [2, 1], and config.pbtxt declares FP32 [1] for each of 1 rows"),
        ({"y": np.ones((1, 3), np.float32)}, "is FP32 [1, 3]"),
        ({"y": np.ones(1, np.float32)}, "is FP32 [1]"),
    ],
)
def test_outputs_that_are_not_declared_are_no_answer(outputs: dict[str, Any], words: str) -> None:
    async def scenario(bench: Bench) -> None:
        bench.endpoints[0].reply = lambda call: Outputs(outputs)
        request = bench.send()
        await bench.settled()
        assert words in str(request.answers[0])

    run(scenario)


def test_more_requests_than_allowed_are_rejected_at_once() -> None:
    async def scenario(bench: Bench) -> None:
        gate = bench.endpoints[0].gate = bench.endpoints[1].gate = asyncio.Event()
        bench.send()
        bench.send()
        with pytest.raises(QueueFull, match="2 requests wait for its endpoints") as raised:
            bench.send()
        assert raised.value.unprocessed
        gate.set()
        await bench.settled()
        assert bench.ended == 2

    run(scenario, max_in_flight="2")


def test_an_unload_ends_every_request_and_closes_the_connections() -> None:
    async def scenario(bench: Bench) -> None:
        bench.endpoints[0].gate = bench.endpoints[1].gate = asyncio.Event()
        requests = [bench.send() for _ in range(3)]
        await asyncio.sleep(0)
        bench.runner.fail_all()
        await bench.settled()
        assert all("is being unloaded" in str(request.answers[0]) for request in requests)
        assert bench.ended == 3
        bench.runner.release()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert all(endpoint.closed for endpoint in bench.endpoints)
        with pytest.raises(Unavailable):
            bench.send()

    run(scenario)


def test_an_unload_before_the_first_step_ends_a_request_too() -> None:
    async def scenario(bench: Bench) -> None:
        request = bench.send()
        bench.runner.fail_all()
        await bench.settled()
        await asyncio.sleep(0)
        assert "is being unloaded" in str(request.answers[0])
        assert bench.ended == 1

    run(scenario)


def test_a_caller_who_has_gone_gives_its_place_back() -> None:
    async def scenario(bench: Bench) -> None:
        bench.endpoints[0].gate = bench.endpoints[1].gate = asyncio.Event()
        requests = [bench.send(), bench.send()]
        await asyncio.sleep(0)
        for request in requests:
            request.cancelled = True
        bench.runner.check_stuck(now_ns())
        await bench.settled()
        assert [request.answers for request in requests] == [["dropped"], ["dropped"]]
        assert bench.ended == 2
        bench.endpoints[0].gate.set()
        bench.send()
        await bench.settled()

    run(scenario, max_in_flight="2")


@pytest.mark.usefixtures("long_pauses")
def test_an_endpoint_that_hangs_is_left_out() -> None:
    async def scenario(bench: Bench) -> None:
        bench.endpoints[0].reply = lambda call: DeadlineExceeded("no answer within the deadline")
        requests = []
        for _ in range(6):
            requests.append(bench.send())
            await bench.settled()
        assert len(bench.endpoints[0].calls) == 1
        assert sum(isinstance(request.answers[0], DeadlineExceeded) for request in requests) == 1

    run(scenario)


def test_a_deadline_that_the_other_server_reports_is_an_answer() -> None:
    async def scenario(bench: Bench) -> None:
        late = DeadlineExceeded("cannot be met")
        late.status = "HTTP 504"
        bench.endpoints[0].reply = bench.endpoints[1].reply = lambda call: late
        for _ in range(6):
            bench.send()
            await bench.settled()
        assert [len(endpoint.calls) for endpoint in bench.endpoints] == [3, 3]

    run(scenario)


def test_a_request_that_may_have_run_is_never_called_unprocessed() -> None:
    async def scenario(bench: Bench) -> None:
        bench.endpoints[0].reply = lambda call: ConnectionLost("the server died")
        bench.endpoints[1].reply = lambda call: Unavailable("cannot connect").not_begun()
        request = bench.send()
        await bench.settled()
        assert isinstance(request.answers[0], Unavailable)
        assert not request.answers[0].unprocessed

    run(scenario)


def test_a_request_without_a_deadline_waits_for_a_limited_time() -> None:
    async def scenario(bench: Bench) -> None:
        bench.send()
        await bench.settled()
        ((_, seconds),) = bench.endpoints[0].calls
        assert seconds is not None
        assert 0 < seconds <= 1.5

    run(scenario, answer_timeout_ms="1500")


def test_sequences_pinned_stages_and_the_trace_context_travel_along() -> None:
    class Pinned(RecordedRequest):
        @property
        def stages(self) -> dict[str, str]:
            return {"m": "3", "a b": "2"}

        @property
        def trace_context(self) -> dict[str, str]:
            return {"traceparent": "00-1-2-01", "baggage": "a=1"}

    async def scenario(bench: Bench) -> None:
        plan = plan_of()
        plan.sequence_id, plan.sequence_start = 7, True
        bench.runner.submit(Pinned(plan, {"x": rows_of(1.0)}, now_ns()))
        await bench.settled()
        ((call, _),) = bench.endpoints[0].calls
        assert call.parameters["sequence_id"] == 7
        assert call.parameters["sequence_start"] is True
        assert parse_stages(call.headers["x-isochrone-stages"].encode()) == {"m": "3", "a b": "2"}
        assert (call.headers["traceparent"], call.headers["baggage"]) == ("00-1-2-01", "a=1")

    run(scenario)


def test_a_caller_who_has_gone_gets_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        request = bench.send()
        request.cancelled = True
        await bench.settled()
        assert request.answers == ["dropped"]

    run(scenario)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, r'parameters\["endpoints"\]: expected addresses of workers'),
        ({"endpoints": " , "}, r'parameters\["endpoints"\]: expected addresses of workers'),
        ({"endpoints": "ftp://a:1"}, r'parameters\["endpoints"\]: expected HOST:PORT'),
        ({"endpoints": "a:1", "ca": "/no/such.pem"}, r'parameters\["endpoints"\]: expected https://'),
        ({"endpoints": "a:1", "remote_version": "0"}, r'parameters\["remote_version"\]: expected a version'),
        ({"endpoints": "a:1", "max_in_flight": "many"}, r'parameters\["max_in_flight"\]: expected a whole number'),
        ({"endpoints": "a:1", "compression": "br"}, r'parameters\["compression"\]: expected "zstd", or nothing'),
        ({"endpoints": "a:1", "compression_level": "3"}, r'parameters\["compression"\]: expected "zstd", since'),
    ],
)
def test_settings_that_cannot_be_used(parameters: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=f"config.pbtxt: {words}"):
        remote_settings(parameters, "m", 1, "config.pbtxt")


@pytest.mark.parametrize(
    ("is_installed", "parameters", "words"),
    [
        (False, {}, r'parameters\["compression"\]: expected the package zstandard'),
        (True, {"endpoints": "a:1,grpc://b:1"}, r'parameters\["endpoints"\]: expected endpoints over HTTP beside'),
        (True, {"compression_level": "0"}, r'parameters\["compression_level"\]: expected a whole number from 1 to 19'),
        (True, {"compression_level": "20"}, r'parameters\["compression_level"\]: expected a whole number from 1 to 19'),
    ],
)
def test_compression_that_cannot_be_used(
    is_installed: bool, parameters: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zstd, "is_installed", lambda: is_installed)
    given = {"endpoints": "a:1", "compression": "zstd", **parameters}
    with pytest.raises(ConfigError, match=f"config.pbtxt: {words}"):
        remote_settings(given, "m", 1, "config.pbtxt")


def test_levels_of_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstd, "is_installed", lambda: True)
    for given, level in (
        ({}, None),
        ({"compression": "zstd"}, 1),
        ({"compression": "zstd", "compression_level": "9"}, 9),
    ):
        assert remote_settings({"endpoints": "a:1", **given}, "m", 1, "config.pbtxt").zstd_level == level


class Watcher:
    """Records what a remote model reports of its link."""

    def __init__(self) -> None:
        self.crossings: list[Crossing] = []
        self.failures = 0

    def crossed(self, model: str, crossing: Crossing) -> None:
        assert model == "m"
        self.crossings.append(crossing)

    def unreachable(self, model: str) -> None:
        self.failures += 1


def test_a_watched_link_asks_for_times_and_reports_answers() -> None:
    async def scenario(bench: Bench) -> None:
        watcher = Watcher()
        bench.send()
        await bench.settled()
        bench.runner.link.watch(watcher)
        answer = Outputs({"y": np.array([[2.0]], np.float32)})
        answer.server_timing = "dispatch;dur=0.5, queue;dur=1, compute;dur=2.5, step1.a;dur=2"
        bench.endpoints[1].reply = lambda call: answer
        bench.send()
        await bench.settled()
        (before, _), (after, _) = bench.endpoints[0].calls + bench.endpoints[1].calls
        assert "x-isochrone-timing" not in before.headers
        assert after.headers["x-isochrone-timing"] == "1"
        (crossing,) = watcher.crossings
        assert crossing.there_ns == 4_000_000
        assert crossing.size > 8
        bench.runner.link.unwatch(watcher)
        bench.send()
        await bench.settled()
        assert len(watcher.crossings) == 1

    run(scenario)


def test_a_link_is_reported_by_what_crossed_it() -> None:
    watcher, reports = Watcher(), LinkReports("m")
    reports.watch(watcher)
    call = make_call("m", {"x": np.zeros(100_000, np.float32)}, None, "", None, "", 0, None, None)
    answer = Outputs({"y": np.zeros(10, np.float32)})
    answer.server_timing = "compute;dur=2.0"
    answer.sent_bytes, answer.received_bytes, answer.unsent_ns = 40_000, 60, 3_000_000
    reports.answered(call, answer, 9_000_000)
    answer.unsent_ns = None
    reports.answered(call, answer, 9_000_000)
    known, unknown = watcher.crossings
    assert 40_060 < known.size < 41_000
    assert known.link_ns == 4_000_000
    assert unknown.there_ns is None


def test_probes_that_connect_tell_nothing_of_the_link() -> None:
    watcher, reports = Watcher(), LinkReports("m")
    reports.watch(watcher)
    for _ in range(2):
        reports.probed(5_000_000)
    reports.unreachable()
    for _ in range(2):
        reports.probed(5_000_000)
    assert [each.there_ns for each in watcher.crossings] == [None, 0, None, 0]


def test_an_endpoint_of_two_that_is_away_is_not_reported() -> None:
    async def scenario(bench: Bench) -> None:
        watcher = Watcher()
        bench.runner.link.watch(watcher)
        bench.endpoints[0].reply = lambda call: Unavailable("cannot connect").not_begun()
        bench.send()
        await bench.settled()
        assert watcher.failures == 0
        bench.endpoints[1].reply = bench.endpoints[0].reply
        bench.send()
        await bench.settled()
        assert watcher.failures == 1

    run(scenario)


@pytest.mark.parametrize(
    ("answers", "ready", "failures"),
    [
        ((True, True), True, 0),
        ((False, True), True, 0),
        ((False, False), False, 0),
        ((Unavailable("away"), False), False, 0),
        ((Unavailable("away"), True), True, 0),
        ((Unavailable("away"), DeadlineExceeded("late")), None, 1),
    ],
)
def test_a_probe_tells_whether_an_endpoint_answers_and_serves(
    answers: tuple[Any, Any], ready: bool | None, failures: int
) -> None:
    async def scenario(bench: Bench) -> None:
        watcher = Watcher()
        bench.runner.link.watch(watcher)
        for endpoint, answer in zip(bench.endpoints, answers, strict=True):
            endpoint.ready = answer
        assert await bench.runner.probe(1.0) is ready
        assert watcher.failures == failures
        assert len(watcher.crossings) == sum(isinstance(answer, bool) for answer in answers)

    run(scenario)


def test_lost_connections_are_counted_in_the_error() -> None:
    async def scenario(bench: Bench) -> None:
        for endpoint in bench.endpoints:
            endpoint.reply = lambda call: ConnectionLost("the server died")
        request = bench.send()
        await bench.settled()
        assert request.answers[0].losses == 2

    run(scenario)


@pytest.mark.usefixtures("long_pauses")
@pytest.mark.parametrize(
    ("code", "text", "trailers", "is_left_out"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: refused", {}, True),
        ("UNAVAILABLE", "DNS resolution failed for one", {}, True),
        ("UNAVAILABLE", "Socket closed", {}, True),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", {}, True),
        ("UNAVAILABLE", "the model is loading", {"x-isochrone-unprocessed": "1"}, False),
        ("DEADLINE_EXCEEDED", "Request timeout expired", {}, False),
        ("INVALID_ARGUMENT", "wrong shape", {}, False),
    ],
)
def test_an_endpoint_over_grpc_that_does_not_answer_is_left_out(
    code: str, text: str, trailers: dict[str, str], is_left_out: bool
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.endpoints[0].reply = lambda call: grpc_failure(code, text, trailers, "grpc://one:8001")
        for _ in range(6):
            bench.send()
            await bench.settled()
        assert (len(bench.endpoints[0].calls) == 1) is is_left_out

    run(scenario)


def test_a_request_is_answered_before_its_link_is_reported() -> None:
    async def scenario(bench: Bench) -> None:
        answered: list[int] = []

        class Reads(Watcher):
            def unreachable(self, model: str) -> None:
                answered.append(len(request.answers))

        bench.runner.link.watch(Reads())
        for endpoint in bench.endpoints:
            endpoint.reply = lambda call: ConnectionLost("the server died")
        request = bench.send()
        await bench.settled()
        assert answered == [1]

    run(scenario)


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_watcher_that_fails_costs_no_request(is_answered: bool) -> None:
    class Fails(Watcher):
        def crossed(self, model: str, crossing: Crossing) -> None:
            raise KeyError(model)

        def unreachable(self, model: str) -> None:
            raise KeyError(model)

    async def scenario(bench: Bench) -> None:
        bench.runner.link.watch(Fails())
        if not is_answered:
            for endpoint in bench.endpoints:
                endpoint.reply = lambda call: Unavailable("cannot connect").not_begun()
        request = bench.send()
        await bench.settled()
        (answer,) = request.answers
        assert isinstance(answer, dict if is_answered else Unavailable)
        assert bench.ended == 1

    run(scenario)
