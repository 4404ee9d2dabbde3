"""One reading of the fleet for all parts of the leader that need it, each at its own pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from planned_plant import RecordsOfLeader

from fleet_records import Records
from isochrone.control.leader.readings import FleetReadings
from isochrone.control.scaling.reading.fleet_counters import FleetReading
from isochrone.control.scaling.reading.fleet_reading import FleetReader
from isochrone.control.state.view import View

FOREVER = 3600.0


class Reader(FleetReader):
    """Reads nothing."""

    def __init__(self) -> None:
        self.asked: list[set[str]] = []
        self.faults = 0
        self.is_closed = False

    async def read(self, view: View, pools: Collection[str]) -> FleetReading:
        self.asked.append(set(pools))
        if self.faults:
            self.faults -= 1
            raise RuntimeError("no reading")
        return FleetReading(float(len(self.asked)), {}, {})

    async def close(self) -> None:
        self.is_closed = True


class Part:
    def __init__(self, *pools: str, pause: float = 0.0, faults: bool = False) -> None:
        self.pools: Collection[str] = pools
        self.pause = pause
        self.faults = faults
        self.taken: list[float] = []

    async def take(self, reading: FleetReading) -> None:
        self.taken.append(reading.instant)
        if self.faults:
            raise RuntimeError("it cannot use it")


def read(reader: Reader, *parts: Part, until: Callable[[], bool]) -> None:
    async def course() -> None:
        readings = FleetReadings(RecordsOfLeader(Records()), parts, lambda: reader)
        readings.start()
        async with asyncio.timeout(30):
            while not until():
                readings.start()
                await asyncio.sleep(0)
        await readings.stop()
        assert reader.is_closed or not reader.asked

    asyncio.run(course())


def test_one_reading_is_for_all() -> None:
    reader, one, other = Reader(), Part("a", "b", pause=FOREVER), Part("b", "c", pause=FOREVER)
    read(reader, one, other, until=lambda: bool(other.taken))
    assert reader.asked == [{"a", "b", "c"}]
    assert one.taken == other.taken == [1.0]


def test_each_part_has_its_own_pace() -> None:
    reader, often, once = Reader(), Part("a"), Part("b", pause=FOREVER)
    read(reader, often, once, until=lambda: len(often.taken) >= 4)
    assert once.taken == [1.0]
    assert reader.asked[:3] == [{"a", "b"}, {"a"}, {"a"}]


def test_a_fault_of_one_part_or_of_a_reading_ends_nothing() -> None:
    reader, faulty, other = Reader(), Part("a", faults=True), Part("b")
    reader.faults = 1
    read(reader, faulty, other, until=lambda: len(other.taken) >= 3)
    assert faulty.taken[:3] == other.taken[:3] == [2.0, 3.0, 4.0]


def test_nothing_is_read_for_parts_without_pools() -> None:
    reader, idle = Reader(), Part()
    turns = iter(range(50))
    read(reader, idle, until=lambda: next(turns, 50) == 50)
    assert reader.asked == []


def test_readings_end_with_the_last_pool_and_begin_again() -> None:
    reader, part = Reader(), Part("a")

    def is_over() -> bool:
        if len(part.taken) == 2:
            part.pools = ()
        if reader.is_closed and not part.pools:
            reader.is_closed, part.pools = False, ("a",)
        return len(part.taken) >= 5

    read(reader, part, until=is_over)
    assert len(part.taken) >= 5
