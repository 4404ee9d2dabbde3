"""Sample models, written once for all tests of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from generation_models import SampleModel, write_sample


@pytest.fixture(scope="session")
def sample_model(tmp_path_factory: pytest.TempPathFactory) -> SampleModel:
    """The folder of a version of a sample, by its name; not to be changed."""
    repository = tmp_path_factory.mktemp("generation")
    written: dict[str, Path] = {}

    def sample(name: str) -> Path:
        if name not in written:
            written[name] = write_sample(repository, name)
        return written[name]

    return sample
