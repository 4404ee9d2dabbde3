"""SQLite keeps what every store promises, several openers on one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.store.opening import open_store
from store_conformance import Place, StoreConformance


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(lambda: open_store("sqlite:state/fleet.db", tmp_path), "/isochrone/test/", lease_seconds=3)


class TestSqliteStore(StoreConformance):
    pass
