"""Tests that need a GPU: ``make test-gpu``. Where none is usable they fail, with the reason; none is skipped."""

from __future__ import annotations

import pytest

from generation_models import SampleModel, samples_in
from isochrone.devices.explanation import explain
from isochrone.devices.gpu_facts import read_driver, read_runtime


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session", autouse=True)
def usable_gpu() -> None:
    reason = explain(read_driver(), read_runtime("torch"), 0)
    if reason:
        pytest.fail(f"these tests need a GPU that torch can use, but {reason}", pytrace=False)


@pytest.fixture(scope="session")
def sample_model(tmp_path_factory: pytest.TempPathFactory) -> SampleModel:
    """The folder of a version of a small model that generates, by its name; not to be changed."""
    return samples_in(tmp_path_factory.mktemp("generation"))


@pytest.fixture(scope="session")
def sharp_model(tmp_path_factory: pytest.TempPathFactory) -> SampleModel:
    """The same with sharp logits, for comparisons of rounded ones."""
    return samples_in(tmp_path_factory.mktemp("sharp"), sharp=True)
