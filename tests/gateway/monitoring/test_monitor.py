"""An endpoint's watch: unknown means unserved, health checks wait for nothing, and of two answers about what it serves,
the one that was asked for later stands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offline import OfflineLoop, RecordingTransport, add_members, make_fleet, offline, turns
from structlog.testing import capture_logs

from isochrone.clock import SECOND, now_ns
from isochrone.gateway.fleet.member import Member
from isochrone.gateway.monitoring.monitor import Monitor, MonitorRules
from isochrone.gateway.upstream.addresses import Upstream

#: Asks nothing of its own accord within a test.
QUIET = MonitorRules(interval=60, timeout=60, index_interval=3600)


READY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def index(*versions: str) -> bytes:
    return answer(json.dumps([{"name": "m", "version": version, "state": "READY"} for version in versions]).encode())


class Endpoint:
    """One that the test plays: questions are answered in the order they were asked, whatever connection they are on."""

    def __init__(self, loop: OfflineLoop, rules: MonitorRules = QUIET, api: str = "") -> None:
        self._loop = loop
        self.fleet = make_fleet()
        self.fleet.set_members([Upstream("a", 1, 1, api=api)])
        self.member = self.fleet.members["a:1"]
        self.lost: list[Member] = []
        self.monitor = Monitor(self.member, self.fleet, rules, self.lost.append)

    def questions(self, path: bytes) -> list[RecordingTransport]:
        return [transport for transport in self._loop.transports if path in transport.written]

    async def answers(self, path: bytes, data: bytes) -> None:
        """The open question about a path is answered."""
        await turns()
        (transport,) = self.questions(path)
        transport.written.clear()
        transport.protocol.data_received(data)
        await turns()


async def until(look: Callable[[], object]) -> None:
    while not look():
        await turns()


async def lost_in_time(loop: OfflineLoop, endpoint: Endpoint) -> None:
    """Lets time pass until the endpoint, which is silent, is given up."""
    endpoint.member.endpoint.heard_at = 0
    while not endpoint.lost:
        loop.pass_time(0.01)
        await turns()


HEALTH, INDEX = b"GET /v2/health/ready", b"POST /v2/repository/index"


def test_healthy_only_when_the_index_is_known() -> None:
    async def run(loop: OfflineLoop) -> None:
        endpoint = Endpoint(loop)
        assert endpoint.member.serves is None
        await endpoint.answers(HEALTH, READY)
        assert not endpoint.member.endpoint.healthy
        await endpoint.answers(INDEX, index("1"))
        assert endpoint.member.endpoint.healthy
        assert (endpoint.member.serves, endpoint.member.fault) == ({"m": {"1": ""}}, "")
        await endpoint.monitor.stop()

    offline(run)


def test_one_that_is_not_ready_from_the_start_is_logged_once_with_its_reason() -> None:
    async def run(loop: OfflineLoop) -> None:
        loop.stop_clock()
        with capture_logs() as logs:
            endpoint = Endpoint(loop, MonitorRules(interval=0.01, timeout=60, index_interval=3600))
            for _ in range(3):
                await endpoint.answers(HEALTH, answer(b"", b"503 Service Unavailable"))
                loop.pass_time(1.0)
                await turns()
        said = [(each["event"], each["worker"], each["reason"]) for each in logs]
        assert said == [("a worker is not ready", "a:1", "it says not ready (HTTP 503)")]
        await endpoint.monitor.stop()

    offline(run)


def test_another_reason_is_logged_too_and_each_once_until_it_is_ready() -> None:
    async def run(loop: OfflineLoop) -> None:
        loop.stop_clock()

        async def says(health: bytes) -> None:
            await turns()
            while not endpoint.questions(HEALTH):
                loop.pass_time(1.0)
                await turns()
            await endpoint.answers(HEALTH, health)

        with capture_logs() as logs:
            endpoint = Endpoint(loop, MonitorRules(interval=0.01, timeout=60, index_interval=3600))
            for code in (503, 500, 503, 500):
                await says(answer(b"", b"%d Error" % code))
            await says(READY)
            await endpoint.answers(INDEX, index("1"))
            for code in (503, *range(600, 700)):
                await says(answer(b"", b"%d Error" % code))
        said = [each.get("reason", each["event"]) for each in logs]
        reasons = [f"it says not ready (HTTP {code})" for code in (503, 500, 503, *range(600, 607))]
        assert said == [*reasons[:2], "a worker is ready", *reasons[2:]]
        await endpoint.monitor.stop()

    offline(run)


def test_a_server_of_openais_api_alone() -> None:
    async def run(loop: OfflineLoop) -> None:
        endpoint = Endpoint(loop, api="openai")
        models = answer(b'{"object": "list", "data": [{"id": "org/model", "object": "model", "created": 1}]}')
        # First the health check, then what it serves; both ask the same.
        for _ in range(2):
            await endpoint.answers(b"GET /v1/models", models)
        assert endpoint.member.endpoint.healthy
        assert endpoint.member.serves == {"org/model": {"1": ""}}
        endpoint.monitor.look_now()
        await endpoint.answers(b"GET /v1/models", answer(b"[]"))
        assert not endpoint.member.endpoint.healthy
        assert not any(b"/v2/" in transport.written for transport in loop.transports)
        await endpoint.monitor.stop()

    offline(run)


@pytest.mark.parametrize(
    "answered",
    [
        answer(b"<html>It works!</html>"),
        answer(b'{"models": []}'),
        answer(b'[{"nome": "m"}]'),
        answer(b'[["m", "1"]]'),
        answer(b"null"),
        answer(b"", b"404 Not Found"),
        answer(b"", b"501 Unsupported"),
    ],
)
def test_an_index_that_does_not_parse_takes_what_was_known(answered: bytes) -> None:
    async def run(loop: OfflineLoop) -> None:
        endpoint = Endpoint(loop)
        await endpoint.answers(HEALTH, READY)
        await endpoint.answers(INDEX, index("1"))
        # A server error may be for once: it takes two.
        for _ in range(2 if b" 501 " in answered else 1):
            endpoint.monitor.look_now()
            await endpoint.answers(INDEX, answered)
        assert endpoint.member.serves is None
        assert not endpoint.member.endpoint.healthy
        assert "index" in endpoint.member.fault
        # It is asked on, and comes back when it answers properly.
        endpoint.monitor.look_now()
        await endpoint.answers(INDEX, index("2"))
        assert endpoint.member.endpoint.healthy
        assert endpoint.member.serves == {"m": {"2": ""}}
        await endpoint.monitor.stop()

    offline(run)


def test_a_version_without_a_state_is_not_served() -> None:
    async def run(loop: OfflineLoop) -> None:
        endpoint = Endpoint(loop)
        await endpoint.answers(HEALTH, READY)
        await endpoint.answers(INDEX, answer(b'[{"name": "m"}, {"name": "n", "version": "1", "state": "LOADING"}]'))
        assert endpoint.member.serves == {}
        await endpoint.monitor.stop()

    offline(run)


def test_a_health_check_does_not_wait_for_the_index() -> None:
    """An index that is never answered keeps nobody from noticing that the endpoint has stopped."""

    async def run(loop: OfflineLoop) -> None:
        loop.stop_clock()
        endpoint = Endpoint(loop, MonitorRules(interval=0, timeout=0.5, index_interval=3600))
        await endpoint.answers(HEALTH, READY)
        await endpoint.answers(INDEX, index("1"))
        endpoint.monitor.look_now()
        await until(lambda: endpoint.questions(INDEX))
        await lost_in_time(loop, endpoint)
        assert not endpoint.member.endpoint.healthy
        assert len(endpoint.questions(INDEX)) == 1
        await endpoint.monitor.stop()

    offline(run)


def test_an_index_that_was_not_waited_for_is_asked_for_again() -> None:
    async def run(loop: OfflineLoop) -> None:
        endpoint = Endpoint(loop, MonitorRules(interval=0, timeout=60, index_interval=3600))
        await endpoint.answers(HEALTH, READY)
        await endpoint.answers(INDEX, index("1"))
        reading = asyncio.ensure_future(endpoint.monitor.read_index())
        await until(lambda: endpoint.questions(INDEX))
        (hung,) = endpoint.questions(INDEX)
        reading.cancel()
        hung.written.clear()
        # The watch is asleep until the next index is due, an hour from now, unless it is woken.
        await until(lambda: endpoint.questions(INDEX))
        await endpoint.answers(INDEX, index("2"))
        assert endpoint.member.serves == {"m": {"2": ""}}
        await endpoint.monitor.stop()

    offline(run)


def test_an_endpoint_that_answers_others_meanwhile_is_not_lost() -> None:
    """Large bodies may keep it from a health check for a moment; what it sends shows that it is there."""

    async def run(loop: OfflineLoop) -> None:
        loop.stop_clock()
        endpoint = Endpoint(loop, MonitorRules(interval=0, timeout=0.5, index_interval=3600))
        await endpoint.answers(HEALTH, READY)
        await endpoint.answers(INDEX, index("1"))
        unanswered: list[RecordingTransport] = []

        def answers_others() -> bool:
            loop.pass_time(0.01)
            # However late the loop gets its turn: after every question that is open now.
            endpoint.member.endpoint.heard_at = now_ns() + SECOND
            endpoint.monitor._checked_at = 0  # a second has passed
            unanswered.extend(each for each in endpoint.questions(HEALTH) if each not in unanswered)
            return len(unanswered) > 5

        await until(answers_others)
        assert endpoint.member.endpoint.healthy
        assert not endpoint.lost
        # Silent, it is lost as ever.
        await lost_in_time(loop, endpoint)
        await endpoint.monitor.stop()

    offline(run)


def test_a_stall_of_the_gateway_itself_is_no_sign_of_a_lost_endpoint() -> None:
    """The time-out ran while nobody could answer or listen; one that stalls at every check notices losses all the
    same."""

    async def run(loop: OfflineLoop) -> None:
        loop.stop_clock()
        endpoint = Endpoint(loop, MonitorRules(interval=0, timeout=0.5, index_interval=3600))
        await endpoint.answers(HEALTH, READY)
        await endpoint.answers(INDEX, index("1"))
        endpoint.member.endpoint.heard_at = 0

        async def asked() -> None:
            while not endpoint.questions(HEALTH):
                loop.pass_time(0.001)
                await turns()

        for failures in (0, 1):
            await asked()
            (unanswered,) = endpoint.questions(HEALTH)
            loop.pass_time(5)
            unanswered.written.clear()
            await asked()
            assert endpoint.monitor._failures == failures
            assert endpoint.member.endpoint.healthy
        await lost_in_time(loop, endpoint)
        await endpoint.monitor.stop()

    offline(run)


async def two_questions(loop: OfflineLoop) -> tuple[Monitor, list[RecordingTransport], list[asyncio.Task[None]]]:
    """A watch that asks for the index twice, on two connections, the older first."""
    fleet = make_fleet()
    add_members(fleet, {"m": {"1": ""}})
    member = fleet.members["a:1"]
    monitor = Monitor(member, fleet, QUIET, lambda lost: None)
    await turns()
    # Its own first questions are not part of this.
    loop.transports[0].protocol.data_received(READY)
    await turns()
    await monitor.stop()
    loop.transports.clear()
    member.connections.drop_idle()
    reading = []
    for _ in range(2):
        reading.append(asyncio.ensure_future(monitor.read_index()))
        await turns()
    assert len(loop.transports) == 2
    assert all(b"POST /v2/repository/index" in transport.written for transport in loop.transports)
    return monitor, loop.transports, reading


def test_the_older_questions_answer_comes_last_and_is_ignored() -> None:
    async def run(loop: OfflineLoop) -> None:
        monitor, (older, newer), reading = await two_questions(loop)
        newer.protocol.data_received(index("1", "2"))
        await turns()
        assert monitor.member.serves == {"m": {"1": "", "2": ""}}
        older.protocol.data_received(index("1"))
        await asyncio.gather(*reading)
        assert monitor.member.serves == {"m": {"1": "", "2": ""}}

    offline(run)


def test_answers_in_order_are_both_taken() -> None:
    async def run(loop: OfflineLoop) -> None:
        monitor, (older, newer), reading = await two_questions(loop)
        older.protocol.data_received(index("1", "2"))
        await turns()
        assert monitor.member.serves == {"m": {"1": "", "2": ""}}
        newer.protocol.data_received(index("2"))
        await asyncio.gather(*reading)
        assert monitor.member.serves == {"m": {"2": ""}}

    offline(run)


def test_the_older_one_stands_where_the_newer_is_never_answered() -> None:
    async def run(loop: OfflineLoop) -> None:
        monitor, (older, newer), reading = await two_questions(loop)
        newer.protocol.connection_lost(None)
        await turns()
        older.protocol.data_received(index("1", "2"))
        await asyncio.gather(*reading)
        assert monitor.member.serves == {"m": {"1": "", "2": ""}}

    offline(run)


def test_requests_on_half_open_connections_of_a_process_that_is_gone_are_given_up() -> None:
    """A broken connection reports the process as gone; other connections may not break for hours."""

    async def run(loop: OfflineLoop) -> None:
        loop.stop_clock()
        endpoint = Endpoint(loop, MonitorRules(interval=0, timeout=0.5, index_interval=3600))
        await endpoint.answers(HEALTH, READY)
        await endpoint.answers(INDEX, index("1"))
        endpoint.monitor.process_gone()
        assert not endpoint.lost, "most requests hear of it by their own connections"
        await lost_in_time(loop, endpoint)
        await endpoint.monitor.stop()
        assert len(endpoint.lost) == 1

    offline(run)


@given(members=st.integers(1, 20_000), failures=st.integers(0, 1000))
def test_all_probes_together_stay_below_their_rate(members: int, failures: int) -> None:
    rules = MonitorRules()
    pause = rules.pause(members, failures)
    if failures == 1:
        assert pause == rules.interval, "the second probe decides, so it is sent soon"
    else:
        assert members / pause <= rules.most_per_second * 1.001
        assert pause <= max(2.0, members / rules.most_per_second)


def test_a_member_that_is_down_for_long_is_asked_less_often() -> None:
    assert [MonitorRules().pause(10, failures) for failures in (0, 2, 7, 8, 40, 400)] == [0.1, 0.1, 0.1, 0.2, 1.0, 2.0]


def test_of_a_worker_that_is_not_ready_only_the_health_check_sets_a_timer() -> None:
    async def play(loop: OfflineLoop) -> None:
        loop.refuses = True
        endpoint = Endpoint(loop, MonitorRules(interval=1000, timeout=60, index_interval=3600))
        await until(lambda: endpoint.member.fault)
        await turns()
        assert sum(500 < seconds < 2000 for seconds in loop.timers) == 1
        await endpoint.monitor.stop()

    offline(play)
