"""Processes that are killed, stopped or starved around one SQLite file: nothing acknowledged is lost or half."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import store_process

from isochrone.store.base import Snapshot
from isochrone.store.opening import open_store
from store_conformance import mirrored, run, until

KILLS = 36


@contextlib.contextmanager
def started(kind: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, store_process.__file__, kind, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    words = process.stdout.readline().split(" ", 1)
    assert words != [""], "the process ended"
    return [word.strip() for word in words]


def killed_writer(process: subprocess.Popen[str], chance: random.Random) -> int:
    """Lets one writer run, kills it somewhere, and tells the last number it was given an acknowledgement for."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    last = child = ended = 0
    acknowledgements = chance.randrange(6)
    kill_at = None
    while not ended:
        if child and not acknowledgements and kill_at is None:
            kill_at = time.monotonic() + chance.random() * 0.004
            while time.monotonic() < kill_at:
                pass
            os.kill(child, signal.SIGKILL)
        kind, number = line(process)
        if kind == "acknowledged":
            last = int(number)
            acknowledgements = max(acknowledgements - 1, 0)
        elif kind == "writer":
            child = int(number)
        else:
            ended = int(number)
    return last


def check_whole(snapshot: Snapshot, acknowledged: int) -> int:
    values = {key.removeprefix(store_process.PREFIX): entry.value for key, entry in snapshot.entries.items()}
    count = int(values.pop("count", b"0"))
    assert count >= acknowledged, f"{acknowledged} was acknowledged, {count} is there"
    left = {key.partition("/")[2]: value for key, value in values.items() if key.startswith("left/")}
    right = {key.partition("/")[2]: value for key, value in values.items() if key.startswith("right/")}
    assert left == right
    assert left == {str(number % 7): str(number).encode() * 3000 for number in range(max(count - 3, 1), count + 1)}
    return count


def test_kill_at_any_instant(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    chance = random.Random(20260)

    async def scenario() -> None:
        bystander = open_store(f"sqlite:{path}")
        with started("writers", path) as process:
            for _ in range(KILLS):
                last = await asyncio.to_thread(killed_writer, process, chance)
                count = check_whole(await bystander.list(store_process.PREFIX), last)
                # And to one who comes new.
                newcomer = open_store(f"sqlite:{path}")
                assert check_whole(await newcomer.list(store_process.PREFIX), last) == count
                await newcomer.close()
        assert count > KILLS
        await bystander.close()

    run(scenario())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_stopped_holder_loses_its_lease_and_knows_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"

    async def scenario() -> None:
        store = open_store(f"sqlite:{path}")
        async with mirrored(store, "/") as mirror:
            with started("holder", path) as process:
                assert await asyncio.to_thread(line, process) == ["held"]
                await until(lambda: "/held" in mirror.entries, "the key is seen")
                os.kill(process.pid, signal.SIGSTOP)
                await until(lambda: "/held" not in mirror.entries, "the lease has ended")
                os.kill(process.pid, signal.SIGCONT)
                assert await asyncio.to_thread(line, process) == ["lost"]
        await store.close()

    run(scenario())


def test_no_room_to_write_is_told_and_passes(tmp_path: Path) -> None:
    with started("starved", tmp_path / "fleet.db") as process:
        kind, error = line(process)
        assert kind == "refused"
        assert "free space" in error
        assert line(process) == ["kept", "True"]
        assert line(process) == ["again", "True"]
