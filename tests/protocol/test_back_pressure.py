"""Producers that wait for a slow reader: all are called, once, in their order."""

from __future__ import annotations

from collections.abc import Callable

from isochrone.protocol.back_pressure import WaitingProducers


class Exchange:
    on_writable: Callable[[], None] | None = None


def test_all_are_called_once_and_may_wait_again() -> None:
    exchange = Exchange()
    producers = WaitingProducers(exchange)
    called: list[str] = []

    def first() -> None:
        called.append("first")
        producers.add(lambda: called.append("again"))

    producers.add(first)
    producers.add(lambda: called.append("second"))
    assert exchange.on_writable is not None
    exchange.on_writable()
    assert called == ["first", "second"]
    exchange.on_writable()
    producers.resume()
    assert called == ["first", "second", "again"]
