"""The ledger of a device's memory: which model holds how much of it, and for what. Pure, but for its lock.

A backend reserves what a load needs before it allocates it. The device says how much is free, which includes what other
processes hold; the ledger says which of our models hold the rest, so that a refusal names them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from isochrone.errors import Unavailable


class Holding(StrEnum):
    """What memory is held for."""

    WEIGHTS = "weights"
    #: The memory of captured graphs: activations and results.
    GRAPHS = "graphs"
    #: Staging slots: inputs and outputs of batches on their way.
    SLOTS = "slots"
    #: Keys and values of generated sequences.
    CACHE = "cache"


@dataclass(frozen=True, slots=True)
class Account:
    """Who holds memory: one instance of a model version."""

    model: str
    version: str
    instance: int

    def __str__(self) -> str:
        return f"model '{self.model}' version {self.version} instance {self.instance}"


class MemoryLedger:
    """The memory of one device. Loads come from several threads."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._held: dict[tuple[Account, Holding], int] = {}
        self._lock = threading.Lock()

    def reserve(
        self, account: Account, needs: dict[Holding, int], free: int, total: int, spare: int = 0, share: float = 1.0
    ) -> None:
        """Records what a load is about to allocate; raises ``Unavailable`` if it does not fit.

        ``free`` and ``total`` are the device's own figures; ``spare`` bytes stay free for what nobody can state before
        it happens: workspaces of libraries, fragmentation. Of ``total``, only ``share`` may be in use.
        """
        needed = sum(needs.values())
        withheld = int(total * (1 - share))
        with self._lock:
            if needed + spare > free - withheld:
                raise Unavailable(self._refusal(account, needs, free, total, spare, withheld))
            for holding, size in needs.items():
                self._held[account, holding] = self._held.get((account, holding), 0) + size

    def record(self, account: Account, holding: Holding, size: int) -> None:
        """Records what was measured after it was allocated; it replaces an earlier figure."""
        with self._lock:
            self._held[account, holding] = size

    def release(self, account: Account) -> None:
        """Forgets everything that an instance holds."""
        with self._lock:
            for key in [key for key in self._held if key[0] == account]:
                del self._held[key]

    def held(self, account: Account) -> dict[Holding, int]:
        with self._lock:
            return {holding: size for (owner, holding), size in self._held.items() if owner == account}

    def __iter__(self) -> Iterator[tuple[Account, Holding, int]]:
        with self._lock:
            entries = [(owner, holding, size) for (owner, holding), size in self._held.items()]
        return iter(entries)

    @property
    def total_held(self) -> int:
        with self._lock:
            return sum(self._held.values())

    def _refusal(
        self, account: Account, needs: dict[Holding, int], free: int, total: int, spare: int, withheld: int
    ) -> str:
        parts = ", ".join(f"{holding} {mebibytes(size)}" for holding, size in needs.items())
        by_owner: dict[Account, int] = {}
        for (owner, _), size in self._held.items():
            by_owner[owner] = by_owner.get(owner, 0) + size
        largest = sorted(by_owner.items(), key=lambda entry: -entry[1])[:5]
        holders = "; ".join(f"{owner} holds {mebibytes(size)}" for owner, size in largest)
        limit = f", of which {mebibytes(withheld)} may not be used (--model-load-gpu-limit)" if withheld else ""
        return (
            f"{account} does not fit on {self.device}: it needs {mebibytes(sum(needs.values()))} ({parts}) and "
            f"{mebibytes(spare)} to spare, {mebibytes(free)} of {mebibytes(total)} are free{limit}; "
            f"{holders or 'no model of this process holds any'}"
        )


def mebibytes(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB" if size >= 1 << 20 else f"{size:,} bytes"


_LEDGERS: dict[str, MemoryLedger] = {}
_LEDGERS_LOCK = threading.Lock()


def ledger_of(device: str) -> MemoryLedger:
    """The ledger of a device of this process, such as ``cuda:0``."""
    with _LEDGERS_LOCK:
        return _LEDGERS.setdefault(device, MemoryLedger(device))


def ledgers() -> list[MemoryLedger]:
    with _LEDGERS_LOCK:
        return list(_LEDGERS.values())
