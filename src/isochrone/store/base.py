"""What a store promises, whichever it is. The model is etcd's: keys with revisions, transactions, watches, leases.

Every change of the store has a revision, which only grows. A transaction is seen by everybody whole or not at all, and
is on disk (with etcd: on a majority's) when it returns. ``open_store`` makes one from a URL.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from isochrone.errors import Unavailable


class StoreUnavailable(Unavailable):
    """The store does not answer, or cannot write: the message says which, why, and what to do."""

    code = "store_unavailable"


class LeaseEnded(StoreUnavailable):
    """A ``Put`` named a lease that has ended. Nothing was written: grant a new one and try again."""

    code = "lease_ended"

    def __init__(self, url: str, lease: int) -> None:
        self.lease = lease
        super().__init__(f"store {url}: lease {lease} has ended, nothing was written; grant a new one")


class Compacted(Exception):
    """A watch asked for changes that are no longer kept: list again, and watch from there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record."""

    key: str
    value: bytes
    #: Of the change that wrote it last.
    revision: int
    #: The lease it goes with; 0: it stays.
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition: the key was last written by this revision; 0: it is not there."""

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
    """Of a transaction. Not succeeded: some condition did not hold, and nothing was written."""

    succeeded: bool
    #: The store's revision after it; of the change itself, if it succeeded.
    revision: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was under a prefix at one revision."""

    entries: Mapping[str, Entry]
    revision: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything that one or more whole revisions changed under a prefix."""

    revision: int
    written: tuple[Entry, ...] = ()
    deleted: tuple[str, ...] = ()


class Lease(ABC):
    """Keys written with it vanish when it ends: when it is revoked, or its holder is not heard of for ``seconds``.

    It is kept alive in the background from the moment it is granted.
    """

    id: int
    seconds: float
    #: Why it could not be kept alive when that was last tried: also where reading still works. "": it could.
    error: str = ""

    @property
    @abstractmethod
    def lost(self) -> bool:
        """It has ended without being revoked: a new one must be granted and its keys written again."""

    @abstractmethod
    async def revoke(self) -> None:
        """Ends it now, and its keys with it. Harmless when it has ended already or the store is away."""


class Store(ABC):
    """All methods raise ``StoreUnavailable`` when the store cannot be reached or cannot write."""

    #: As it was opened: for messages.
    url: str

    @abstractmethod
    async def get(self, key: str) -> Entry | None: ...

    @abstractmethod
    async def list(self, prefix: str) -> Snapshot:
        """Everything under a prefix, as of one revision."""

    @abstractmethod
    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Put | Delete], *, durable: bool = True
    ) -> Outcome:
        """If every condition holds, all operations; otherwise none. No key may be operated on twice.

        Not ``durable``: everybody sees it at once all the same, and it survives the death of any process, but not
        always that of the machine. For what means nothing after that. A durable one makes all before it so.

        When it raises, whether it happened is not known: read again. Only after ``LeaseEnded`` it is: nothing did.
        """

    @abstractmethod
    def watch(self, prefix: str, after: int) -> AsyncIterator[Changes]:
        """Every change after a revision, in order, whole transactions. Raises ``Compacted`` or ``StoreUnavailable``;
        then the watch is over. Changes without content say that the store has moved on elsewhere."""

    @abstractmethod
    async def grant(self, seconds: float) -> Lease: ...

    @abstractmethod
    async def close(self) -> None: ...
