"""The ledger of a device's memory: which model holds how much of it, and for what. Pure, but for its lock.

A backend reserves what a load needs before it allocates it. The device says how much is free, which includes what other
processes hold; the ledger says which of our models hold the rest, so that a refusal names them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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


class Reservation:
    """What one load holds. Two loads of one instance, such as an old one and its replacement, have one each."""

    def __init__(self, ledger: MemoryLedger, account: Account, needs: dict[Holding, int]) -> None:
        self._ledger = ledger
        self.account = account
        self.held = dict(needs)
        #: What is reserved and may not be allocated yet: the device shows it as free.
        self._unallocated = dict(needs)

    @property
    def pending(self) -> int:
        """Bytes that are reserved and may not be allocated yet."""
        return sum(self._unallocated.values())

    def settle(self, *holdings: Holding) -> None:
        """These are allocated, or everything where none is named: the device's own figures show it."""
        with self._ledger.lock:
            for holding in holdings or tuple(self._unallocated):
                self._unallocated.pop(holding, None)

    def record(self, holding: Holding, size: int) -> None:
        """Records what was measured after it was allocated; it replaces an earlier figure."""
        with self._ledger.lock:
            self.held[holding] = size

    def release(self) -> None:
        """The load holds nothing any more."""
        self._ledger.forget(self)


class MemoryLedger:
    """The memory of one device. Loads come from several threads."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.lock = threading.Lock()
        self._reservations: list[Reservation] = []

    def reserve(
        self,
        account: Account,
        needs: dict[Holding, int],
        memory: Callable[[], tuple[int, int]],
        spare: int = 0,
        share: float = 1.0,
    ) -> Reservation:
        """Records what a load is about to allocate; raises ``Unavailable`` if it does not fit.

        ``memory`` gives the device's own figures, free and in total; ``spare`` bytes stay free for what nobody can
        state before it happens: workspaces of libraries, fragmentation. Of all, only ``share`` may be in use.
        """
        with self.lock:
            free, total = memory()
            # What other loads are about to allocate is not free.
            free = max(0, free - sum(each.pending for each in self._reservations))
            withheld = int(total * (1 - share))
            if sum(needs.values()) + spare > free - withheld:
                raise Unavailable(self._refusal(account, needs, free, total, spare, withheld))
            made = Reservation(self, account, needs)
            self._reservations.append(made)
            return made

    def forget(self, reservation: Reservation) -> None:
        with self.lock:
            if reservation in self._reservations:
                self._reservations.remove(reservation)

    def held(self, account: Account) -> dict[Holding, int]:
        """What all loads of an instance hold."""
        found: dict[Holding, int] = {}
        for owner, holding, size in self:
            if owner == account:
                found[holding] = found.get(holding, 0) + size
        return found

    def __iter__(self) -> Iterator[tuple[Account, Holding, int]]:
        with self.lock:
            entries = [
                (each.account, holding, size) for each in self._reservations for holding, size in each.held.items()
            ]
        return iter(entries)

    def _refusal(
        self, account: Account, needs: dict[Holding, int], free: int, total: int, spare: int, withheld: int
    ) -> str:
        parts = ", ".join(f"{holding} {mebibytes(size)}" for holding, size in needs.items())
        by_owner: dict[Account, int] = {}
        for each in self._reservations:
            by_owner[each.account] = by_owner.get(each.account, 0) + sum(each.held.values())
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
