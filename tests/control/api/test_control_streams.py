"""Server-sent events, read from their source: what follows, what is skipped, and signs of life when nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import msgspec
from api_process import KEYS, Api, with_api

from isochrone.control.api.messages import Event
from isochrone.control.api.streams import event_changes, rollout_changes
from isochrone.control.state.events import event
from isochrone.control.state.records import EventRecord
from isochrone.control.state.rollout_records import DONE, PREPARING, Change, RolloutRecord


async def write_event(api: Api, what: str) -> None:
    put = event(KEYS, EventRecord(1.0, "ada", what), what)
    await api.write(put.key, put.value)


async def next_event(source: AsyncIterator[bytes]) -> Event:
    """The next that is no comment."""
    while True:
        message = await anext(source)
        if message.startswith(b"id: "):
            head, name, data = message.decode().strip().split("\n")
            found = msgspec.json.decode(data.removeprefix("data: "), type=Event)
            assert head == f"id: {found.revision}"
            assert name == "event: event"
            return found


def test_events_are_followed_from_a_revision_on_without_a_gap(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await write_event(api, "one")
        await write_event(api, "two")
        async with aclosing(event_changes(api.service, 0)) as source:  # type: ignore[type-var]
            first = await next_event(source)
            assert (first.what, (await next_event(source)).what) == ("one", "two")
            waiting = asyncio.ensure_future(next_event(source))
            await write_event(api, "three")
            assert (await waiting).what == "three"
        async with aclosing(event_changes(api.service, first.revision)) as source:  # type: ignore[type-var]
            assert (await next_event(source)).what == "two"

    with_api(tmp_path, scenario)


def test_a_quiet_stream_gives_signs_of_life(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await api.write(KEYS.rollout("r1"), RolloutRecord("r1", {"m": Change("2")}, PREPARING))
        async with aclosing(rollout_changes(api.service, "r1", quiet_seconds=0.01)) as source:  # type: ignore[type-var]
            assert (await anext(source)).startswith(b"id: ")
            assert (await anext(source)).startswith(b": ")

    with_api(tmp_path, scenario)


def test_changes_of_other_records_are_not_told(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await api.write(KEYS.rollout("r1"), RolloutRecord("r1", {"m": Change("2")}, PREPARING))
        reported = []
        async with aclosing(rollout_changes(api.service, "r1", quiet_seconds=30)) as source:  # type: ignore[type-var]
            reported.append(await anext(source))
            await write_event(api, "something else")
            await api.write(KEYS.rollout("r1"), RolloutRecord("r1", {"m": Change("2")}, DONE))
            reported += [message async for message in source]
        assert [b'"state":"done"' in message for message in reported] == [False, True]

    with_api(tmp_path, scenario)


def test_a_rollout_that_is_tidied_away_ends_its_stream(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await api.write(KEYS.rollout("r1"), RolloutRecord("r1", {"m": Change("2")}, PREPARING))
        async with aclosing(rollout_changes(api.service, "r1")) as source:  # type: ignore[type-var]
            await anext(source)
            await api.remove(KEYS.rollout("r1"))
            assert [message async for message in source] == []

    with_api(tmp_path, scenario)
