"""A process of its own around a store, for tests that kill, stop or starve it. Speaks lines on stdin and stdout.

python store_process.py writers PATH   for each line read, forks a writer that tells what was acknowledged
python store_process.py holder PATH    holds a key by a lease, and tells when it knows that it has lost it
python store_process.py starved PATH   writes until no file may grow any more, then with room again
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys

from isochrone.store.base import Delete, Put, StoreUnavailable
from isochrone.store.opening import open_store

PREFIX = "/crash/"


def report(*words: object) -> None:
    # One write each: a process killed in between tells a whole line or nothing.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def write(path: str) -> None:
    store = open_store(f"sqlite:{path}")
    counted = await store.get(PREFIX + "count")
    number = int(counted.value) if counted else 0
    while True:
        number += 1
        # Big enough for several pages, so that there is a middle to be killed in.
        value = str(number).encode() * 3000
        await store.transact(
            [],
            [
                Put(PREFIX + "count", str(number).encode()),
                Put(f"{PREFIX}left/{number % 7}", value),
                Put(f"{PREFIX}right/{number % 7}", value),
                Delete(f"{PREFIX}left/{(number + 3) % 7}"),
                Delete(f"{PREFIX}right/{(number + 3) % 7}"),
            ],
        )
        report("acknowledged", number)


def writers(path: str) -> None:
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(write(path))
        report("writer", child)
        os.waitpid(child, 0)
        report("ended", child)


async def hold(path: str) -> None:
    store = open_store(f"sqlite:{path}")
    lease = await store.grant(4.0)
    await store.transact([], [Put("/held", b"", lease.id)])
    report("held")
    while not lease.lost:  # noqa: ASYNC110 - there is nothing to wait on but the clock
        await asyncio.sleep(0.01)
    report("lost")
    await store.close()


async def starve(path: str) -> None:
    store = open_store(f"sqlite:{path}")
    await store.transact([], [Put("/first", b"1")])
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    log_bytes = os.stat(path + "-wal").st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (log_bytes + 20_000, hard))
    number = 0
    try:
        while number < 100:
            await store.transact([], [Put(f"/more/{number}", bytes(4000))])
            number += 1
    except StoreUnavailable as error:
        report("refused", error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    found = await store.list("/")
    report("kept", len(found.entries) == number + 1)
    outcome = await store.transact([], [Put("/last", b"1")])
    report("again", outcome.succeeded)
    await store.close()


if __name__ == "__main__":
    kind, path = sys.argv[1:]
    if kind == "writers":
        writers(path)
    else:
        asyncio.run({"holder": hold, "starved": starve}[kind](path))
