"""Makes ``offline`` importable from every room of these tests, and keeps them from looking names up."""

from __future__ import annotations

import pytest
from offline import NoNames

from isochrone.wire import connect


@pytest.fixture(autouse=True)
def _no_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "resolver", NoNames())
