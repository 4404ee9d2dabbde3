"""A call that is repeated until the store is available."""

from __future__ import annotations

import asyncio

import pytest

from isochrone.store import retrying
from isochrone.store.base import StoreUnavailable


def test_a_call_is_repeated_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "_FIRST_PAUSE", 0.0)
    attempts: list[int] = []

    async def call() -> int:
        attempts.append(len(attempts))
        if len(attempts) < 3:
            raise StoreUnavailable("away")
        return 7

    assert asyncio.run(retrying.until_available(call)) == 7
    assert attempts == [0, 1, 2]


def test_other_errors_are_raised() -> None:
    async def call() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        asyncio.run(retrying.until_available(call))
