"""The interface of a store. The model is etcd's: keys with revisions, transactions, watches, leases.

Every change of the store has a revision, which only grows. A transaction is visible completely or not at all, and is on
disk (with etcd: on a majority's disks) when it returns. ``open_store`` makes a store from a URL.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from isochrone.errors import Unavailable


class StoreUnavailable(Unavailable):
    """The store does not answer, or cannot write: the message names the store, the reason and the remedy."""

    code = "store_unavailable"


class LeaseEnded(StoreUnavailable):
    """A ``Put`` named a lease that has ended. Nothing was written: grant a new one and retry."""

    code = "lease_ended"

    def __init__(self, url: str, lease: int) -> None:
        self.lease = lease
        super().__init__(f"store {url}: lease {lease} has ended, nothing was written; grant a new one")


class Compacted(Exception):
    """A watch requested changes that are no longer kept: list again, and watch from there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record."""

    key: str
    value: bytes
    #: Of the change that wrote it last.
    revision: int
    #: The lease that it expires with; 0: none.
    lease: int = 0
    #: Whether it carries a seal, of the fleet's present key if this process has the key.
    is_sealed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition: the key was last written by this revision; 0: it does not exist."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a transaction. Not succeeded: a condition did not hold, and nothing was written."""

    succeeded: bool
    #: The store's revision afterwards; if it succeeded, that of the transaction.
    revision: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The entries under a prefix at one revision."""

    entries: Mapping[str, Entry]
    revision: int


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes of one or more complete revisions under a prefix."""

    revision: int
    written: tuple[Entry, ...] = ()
    deleted: tuple[str, ...] = ()


class Lease(ABC):
    """Keys written with it are deleted when it ends: when it is revoked, or not renewed for ``seconds``.

    It is renewed in the background from the moment it is granted.
    """

    id: int
    seconds: float
    #: Why the last renewal failed, even if reading still works; "": it succeeded.
    error: str = ""

    @property
    @abstractmethod
    def lost(self) -> bool:
        """Whether it ended without being revoked: a new one must be granted, and its keys written again."""

    @abstractmethod
    async def revoke(self) -> None:
        """End it and delete its keys. Harmless if it has ended already or the store is unavailable."""


class Store(ABC):
    """All methods raise ``StoreUnavailable`` when the store cannot be reached or cannot write."""

    #: As it was opened, without a password: for messages.
    url: str

    @property
    def seals(self) -> bool:
        """Whether it seals what it writes with the fleet's key."""
        return False

    @abstractmethod
    async def get(self, key: str) -> Entry | None: ...

    @abstractmethod
    async def list(self, prefix: str) -> Snapshot:
        """Everything under a prefix, as of one revision."""

    @abstractmethod
    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete], *, durable: bool = True
    ) -> Outcome:
        """Perform all operations if every condition holds, otherwise none. No key may occur twice in the operations.

        Not ``durable``: it is visible at once and survives the death of any process, but not always that of the
        machine. For records that mean nothing after that. A durable transaction makes all earlier ones durable.

        If it raises, its outcome is unknown: read again. Only after ``LeaseEnded`` nothing was written for certain.
        """

    @abstractmethod
    def watch(self, prefix: str, after: int) -> AsyncIterator[Changes]:
        """Every change after a revision, in order, in complete transactions. Raise ``Compacted`` or
        ``StoreUnavailable``, which ends the watch. Empty changes report a new revision outside the prefix."""

    @abstractmethod
    async def grant(self, seconds: float) -> Lease: ...

    @abstractmethod
    async def close(self) -> None: ...
