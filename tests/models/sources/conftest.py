"""A real S3 server for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.models.object_store import S3, s3_server


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """An empty store, which clients of this process find by the environment."""
    with s3_server(tmp_path / "store") as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store
