"""What every test of this folder needs: the collector's view of the test process as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _frozen_as_before() -> Iterator[None]:
    """A server that stops lets the collector see every object of the process again: here, the modules of all tests.

    Each full collection after it takes half a second, and each start of a server makes one.
    """
    yield
    gc.freeze()
