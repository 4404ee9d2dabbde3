"""Indexes that are read again and again are decoded once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from isochrone.gateway.housekeeping import Housekeeping
from isochrone.gateway.monitoring import indexes as module
from isochrone.gateway.monitoring.indexes import Indexes, Served
from isochrone.wire.exchange import Buffer


def body(*versions: str) -> bytes:
    return json.dumps([{"name": "m", "version": version, "state": "READY"} for version in versions]).encode()


def read(indexes: Indexes, given: Buffer) -> tuple[bytes, Served]:
    return asyncio.run(indexes.read(given))


def test_the_same_bytes_of_many_endpoints_are_decoded_once() -> None:
    indexes = Indexes()
    found = [read(indexes, bytearray(body("1", "2"))) for _ in range(100)]
    assert indexes.decoded == 1
    assert all(kept is found[0][0] and served is found[0][1] for kept, served in found)
    assert found[0][1] == {"m": {"1": "", "2": ""}}


def test_as_many_are_remembered_as_a_fleet_has_pools() -> None:
    indexes = Indexes()
    for _ in range(2):
        for number in range(100):
            assert read(indexes, body(str(number)))[1] == {"m": {str(number): ""}}
    assert len(indexes._known) <= 16


def test_what_does_not_parse_is_not_remembered() -> None:
    indexes = Indexes()
    for _ in range(2):
        with pytest.raises(msgspec.DecodeError):
            read(indexes, b"{")
    assert not indexes._known


class Counting(Housekeeping):
    """Counts what it was given."""

    works = 0

    async def do(self, steps: Any) -> Any:
        self.works += 1
        return await super().do(steps)


def test_a_long_one_is_decoded_in_steps_and_once_for_all_who_wait() -> None:
    names = [f"m{number}" for number in range(1000)]
    long = json.dumps([{"name": name, "version": "1", "state": "READY"} for name in names]).encode()
    housekeeping = Counting()
    indexes = Indexes(housekeeping)
    rows: list[int] = []
    decode = module._decoder.decode

    async def main() -> list[tuple[bytes, Served]]:
        return await asyncio.gather(*(indexes.read(bytearray(long)) for _ in range(5)))

    class Decoder:
        def decode(self, text: bytes) -> Any:
            found = decode(text)
            rows.append(len(found))
            return found

    module._decoder = Decoder()  # type: ignore[assignment]
    try:
        found = asyncio.run(main())
    finally:
        module._decoder = msgspec.json.Decoder(list[module._IndexRow])
    assert (housekeeping.works, indexes.decoded) == (1, 1)
    assert max(rows) <= module._ROWS_PER_TURN
    assert sum(rows) == 1000
    assert all(served is found[0][1] for _, served in found)
    assert found[0][1] == {name: {"1": ""} for name in names}


def test_who_gives_up_does_not_stop_it_for_the_others() -> None:
    long = json.dumps([{"name": f"m{number}", "version": "1", "state": "READY"} for number in range(1000)]).encode()
    indexes = Indexes()

    async def main() -> None:
        first, second = (asyncio.ensure_future(indexes.read(long)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert len((await second)[1]) == 1000
        assert first.cancelled()

    asyncio.run(main())


def test_a_long_one_that_does_not_parse_fails_for_all_who_wait() -> None:
    wrong = json.dumps([{"name": number} for number in range(2000)]).encode()
    indexes = Indexes()

    async def main() -> list[object]:
        return await asyncio.gather(*(indexes.read(wrong) for _ in range(2)), return_exceptions=True)

    assert all(isinstance(each, msgspec.DecodeError) for each in asyncio.run(main()))
    assert not indexes._known
    assert not indexes._decoding
