"""A running fleet gets a key, exchanges it and loses it, and every request is answered meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sealed_fleet import KEYS, SealedFleet, fleet_text, sealed_fleet, wait_until, write_key

from isochrone.secure.fleet_key import FleetKey, read_fleet_key
from isochrone.store.seals import NO_SEAL
from up_process import isochrone


@contextmanager
def load(fleet: SealedFleet) -> Iterator[Counter[str]]:
    """Requests one after the other, on a connection each, from two threads: counts versions and failures."""
    counts: Counter[str] = Counter()
    stopping = threading.Event()

    def ask() -> None:
        while not stopping.is_set():
            try:
                counts[fleet.version()] += 1
            except ConnectionRefusedError:
                # The one gateway of this fleet restarts with its new flags, and nobody listens.
                counts["restarting"] += 1
                stopping.wait(0.05)
            except Exception as error:
                counts[f"failed: {error!r}"[:300]] += 1

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
