"""Sample models, written once for all tests of a run."""

from __future__ import annotations

import pytest

from generation_models import SampleModel, samples_in


@pytest.fixture(scope="session")
def sample_model(tmp_path_factory: pytest.TempPathFactory) -> SampleModel:
    """The folder of a version of a sample, by its name; not to be changed."""
    return samples_in(tmp_path_factory.mktemp("generation"))


@pytest.fixture(scope="session")
def sharp_model(tmp_path_factory: pytest.TempPathFactory) -> SampleModel:
    """The same with sharp logits, for comparisons of rounded ones."""
    return samples_in(tmp_path_factory.mktemp("sharp"), sharp=True)
