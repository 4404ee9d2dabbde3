"""A member's watch: of two answers about what it serves, the one that was asked for later stands."""

from __future__ import annotations

import asyncio
import json

from offline import OfflineLoop, RecordingTransport, add_members, make_fleet, offline, turns

from isochrone.gateway.monitor import Monitor, MonitorRules

#: Asks nothing of its own accord within a test.
QUIET = MonitorRules(interval=60, timeout=60, index_interval=3600)


def index(*versions: str) -> bytes:
    body = json.dumps([{"name": "m", "version": version, "state": "READY"} for version in versions]).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


async def two_questions(loop: OfflineLoop) -> tuple[Monitor, list[RecordingTransport], list[asyncio.Task[None]]]:
    """A watch that asks for the index twice, on two connections, the older first."""
    fleet = make_fleet()
    add_members(fleet, {"m": {"1": ""}})
    member = fleet.members["a:1"]
    monitor = Monitor(member, fleet, QUIET, lambda lost: None)
    # Its own first question is not part of this.
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
