"""What one client subscribes to of one type, what it was sent, and what it said to that. Pure.

Contents are acknowledged and rejected by name: a response of routes or endpoints carries some names only, and its
acknowledgement says nothing of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Subscription:
    """Of one client and one type."""

    #: Whether a response has everything that the client subscribes to: what is missing in it does not exist.
    is_whole: bool
    #: None: everything.
    names: frozenset[str] | None = None
    nonce: str = ""
    version: str = ""
    #: What is left of the response that the client has not answered; None: it has answered all.
    under_way: dict[str, bytes] | None = None
    #: Whether the client rejected the last response, of a type whose responses are whole.
    is_rejected: bool = False
    #: Of other types: what the client rejected and was not sent otherwise since.
    rejected: dict[str, bytes] = field(default_factory=dict)
    #: What was sent last of each name, and what was acknowledged last.
    sent: dict[str, bytes] = field(default_factory=dict)
    acknowledged: dict[str, bytes] = field(default_factory=dict)
    #: What the responses so far were an answer to; None: there was none.
    answered: frozenset[str] | None = None
    #: The resources of which nothing is left to send, as the object that they are.
    settled: Mapping[str, bytes] | None = None

    @property
    def asked(self) -> frozenset[str]:
        return self.names if self.names is not None else frozenset(("*",))

    def wants(self, name: str) -> bool:
        return self.names is None or name in self.names

    def subscribe(self, names: frozenset[str] | None) -> bool:
        """Return whether this changes anything. Nothing is remembered of names that are dropped."""
        if names == self.names:
            return False
        self.names, self.settled = names, None
        self.sent = self._wanted(self.sent)
        self.acknowledged = self._wanted(self.acknowledged)
        self.rejected = self._wanted(self.rejected)
        if self.under_way is not None:
            self.under_way = self._wanted(self.under_way)
        if self.answered is not None:
            self.answered &= self.asked
        return True

    def _wanted(self, found: dict[str, bytes]) -> dict[str, bytes]:
        return {name: value for name, value in found.items() if self.wants(name)}

    def send(self, carried: Mapping[str, bytes], version: str, nonce: str) -> None:
        self.version, self.nonce = version, nonce
        self.under_way, self.is_rejected = dict(carried), False
        if self.is_whole:
            self.sent, self.answered = dict(carried), self.asked
            return
        self.sent.update(carried)
        for name in carried:
            self.rejected.pop(name, None)

    def answer(self, *, is_rejection: bool) -> None:
        """The client acknowledges or rejects the response that is under way."""
        carried, self.under_way = self.under_way or {}, None
        if is_rejection:
            self.is_rejected = self.is_whole
            if not self.is_whole:
                self.rejected.update(carried)
        elif self.is_whole:
            self.acknowledged = carried
        else:
            self.acknowledged.update(carried)

    def forget(self, name: str) -> None:
        """What the client has of this name is of no use any longer: it is sent again."""
        self.settled = None
        self.sent.pop(name, None)
        self.acknowledged.pop(name, None)
        if self.under_way is not None:
            self.under_way.pop(name, None)

    def has_rejected(self, current: Mapping[str, bytes]) -> bool:
        """Whether the client does without something of what is current."""
        return self.is_rejected or any(current.get(name) == value for name, value in self.rejected.items())
