"""Every faulty ensemble is refused when it is loaded, in words that name the fault; its sound neighbours are served."""

from __future__ import annotations

import asyncio

import pytest

from ensemble_repository import write_repository
from faulty_ensembles import CASES, STEPS
from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.models.repository.repository import Repository
from isochrone.worker.catalog.catalog import Catalog
from isochrone.worker.catalog.states import UNAVAILABLE


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[IsochroneError | None, str]]:
    """What the load of each case said, and its state afterwards."""
    repository = write_repository(tmp_path_factory.mktemp("faulty"), STEPS, "worker")
    for name, case in CASES.items():
        write_repository(repository, {name: case.ensemble, **case.others}, "worker")

    async def play() -> dict[str, tuple[IsochroneError | None, str]]:
        catalog = Catalog(Repository([repository]), None, 30)
        found: dict[str, tuple[IsochroneError | None, str]] = {}
        try:
            for name in CASES:
                try:
                    await catalog.load(name)
                    error = None
                except IsochroneError as raised:
                    error = raised
                states = {row[2] for row in catalog.index() if row[0] == name}
                found[name] = (error, ",".join(states))
        finally:
            await catalog.close(5)
        return found

    return asyncio.run(asyncio.wait_for(play(), 100))


@pytest.mark.parametrize("name", CASES)
def test_verdict(verdicts: dict[str, tuple[IsochroneError | None, str]], name: str) -> None:
    error, state = verdicts[name]
    if CASES[name].words:
        assert isinstance(error, InvalidArgument), error
        assert CASES[name].words in str(error)
        assert state == UNAVAILABLE
    else:
        assert error is None
        assert state == "READY"


def test_there_are_enough_of_them() -> None:
    assert sum(bool(case.words) for case in CASES.values()) >= 32
