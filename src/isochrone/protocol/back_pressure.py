"""Producers of responses that wait until the caller has read earlier responses.

An exchange's ``on_writable`` takes one callback; several decoupled models may wait on one exchange. Producers must also
be called when the caller has disconnected: they check for that themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Congestible(Protocol):
    """The part of an exchange that this module uses."""

    on_writable: Callable[[], None] | None


class WaitingProducers:
    """The waiting producers of one exchange, in order of arrival."""

    __slots__ = ("_callbacks", "_exchange")

    def __init__(self, exchange: Congestible) -> None:
        self._exchange = exchange
        self._callbacks: list[Callable[[], None]] = []

    def add(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, when the exchange can take more bytes."""
        self._callbacks.append(callback)
        self._exchange.on_writable = self.resume

    def resume(self) -> None:
        """Call all waiting producers. A producer that has to wait again adds itself."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
