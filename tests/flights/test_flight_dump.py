"""Dumped misses: bounded lines and files, a disk that takes nothing, and reading them again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from isochrone.errors import InvalidArgument
from isochrone.observe.flights.dump import DumpFile, FlightDump, read_dump
from isochrone.observe.flights.messages import FlightPage, WorkerFlight
from isochrone.observe.flights.settings import DEFAULT_REQUESTS, read_recorder


class Misses:
    """A recorder with as many misses as are added."""

    role = "worker"

    def __init__(self) -> None:
        self.ids: list[str] = []

    def missed_since(self, count: int, most: int) -> tuple[int, list[FlightPage]]:
        return len(self.ids), [missed(name) for name in self.ids[count:][-most:]]


def missed(name: str) -> FlightPage:
    flight = WorkerFlight(name, "m", "1", 1, 0, 5, "deadline_exceeded", further_ids=(f"trace-{name}",))
    return FlightPage("worker", 1, 9, 1.0, 9, 1, flights=(flight,))


def test_misses_are_written_once_and_found_again(tmp_path: Path) -> None:
    source = Misses()
    file = DumpFile(tmp_path / "new" / "directory", "worker")
    dump = FlightDump(source, tmp_path, file)
    source.ids += ["a", "b"]
    asyncio.run(dump.write_new())
    asyncio.run(dump.write_new())
    assert (dump.written, dump.lost) == (2, 0)
    with file.path.open("ab") as opened:
        opened.write(b'{"role": "worker", "a"')  # the process was killed
    with file.path.open("ab") as opened:
        opened.write(b'\n{"role": "w\xff", "a": "a"}\n')  # the disk returned something else
    assert [page.flights[0].id for page in read_dump(file.path, "a")] == ["a"]
    assert [page.flights[0].id for page in read_dump(file.path, "trace-b")] == ["b"]
    assert read_dump(file.path, "c") == []


def test_too_many_at_once_are_counted_and_files_are_bounded(tmp_path: Path) -> None:
    source = Misses()
    file = DumpFile(tmp_path, "worker", most_bytes=20_000)
    dump = FlightDump(source, tmp_path, file)
    for turn in range(10):
        source.ids += [f"{turn}-{number}" for number in range(100)]
        asyncio.run(dump.write_new())
    assert (dump.written, dump.lost) == (400, 600)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 20_000
    assert read_dump(file.path, "9-99")


def test_a_disk_that_takes_nothing_costs_lines_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    source = Misses()
    dump = FlightDump(source, tmp_path, DumpFile(tmp_path / "file", "worker"))
    source.ids += ["a", "b", "c"]
    asyncio.run(dump.write_new())
    assert (dump.written, dump.lost) == (0, 3)


def test_flags_of_the_recorder() -> None:
    assert read_recorder(str(DEFAULT_REQUESTS)).dump is None
    assert read_recorder("off").requests == 0
    assert read_recorder("100", "/tmp/x").dump == Path("/tmp/x")
    for given in (("on", ""), ("0", ""), ("-1", ""), ("9" * 20, ""), ("off", "/tmp/x")):
        with pytest.raises(InvalidArgument):
            read_recorder(*given)
