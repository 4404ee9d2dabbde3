"""Producers of responses that wait until their caller has read what it was sent.

Stands between decoupled models and an exchange, whose ``on_writable`` has room for one callback; here are many.
Producers must be called when the caller has gone, too: they look whether it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Congestible(Protocol):
    """As much of an exchange as is needed here."""

    on_writable: Callable[[], None] | None


class WaitingProducers:
    """Those of one exchange, in the order they came."""

    __slots__ = ("_callbacks", "_exchange")

    def __init__(self, exchange: Congestible) -> None:
        self._exchange = exchange
        self._callbacks: list[Callable[[], None]] = []

    def add(self, callback: Callable[[], None]) -> None:
        """It is called once, when the exchange can take more."""
        self._callbacks.append(callback)
        self._exchange.on_writable = self.resume

    def resume(self) -> None:
        """Calls all that wait. One that has to wait again adds itself."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
