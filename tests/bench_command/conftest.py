"""A worker for the tests of ``isochrone bench``: one for each file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench_runs import MODELS

from sample_models import write_models
from server_process import ServerProcess, StartServer


@pytest.fixture(scope="module")
def server(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = write_models(tmp_path_factory.mktemp("bench") / "models", *MODELS)
    with server_factory(repository) as server:
        yield server
