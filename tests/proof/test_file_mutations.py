"""The files of the apply run: the same for one seed, and taken or refused as each says, decided without a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bench.control.applies import Outcome, make_places, report
from bench.control.file_mutations import SPARE, Mutated, Mutations, Places
from bench.control.fleet_run import Shape, fleet_yaml
from bench.control.history import ERROR, OK, Answer
from bench.control.models import MODELS
from bench.control.running_fleet import CONTROLLER, GATEWAY, WORKER
from isochrone.control.fleet.reading.file import lost_versions, read_file
from isochrone.control.requests.decisions import RequestContext
from isochrone.control.requests.fleet import apply_fleet
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.records import Assignment, EpochRecord, FleetRecord, ReconciledRecord
from isochrone.control.state.view import View
from isochrone.errors import IsochroneError
from isochrone.store.base import Entry

pytestmark = pytest.mark.long

KEYS = Keys("proof")
FILES = 90
PORTS = {CONTROLLER: 11000, GATEWAY: 11010, "metrics": 11020, WORKER: 11030}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    return make_places(tmp_path_factory.mktemp("places"))


class Decided:
    """A fleet of records alone: what is taken is served at once, as its file says."""

    def __init__(self, text: str, directory: Path) -> None:
        self._directory = directory
        self._entries: dict[str, Entry] = {}
        self._revision = 0
        assert self.apply(text, agreed=False) == ""

    def apply(self, text: str, *, agreed: bool) -> str:
        """Why not; "": it was taken."""
        view = View(KEYS, self._entries)
        try:
            file = read_file(text, "fleet.yaml", self._directory)
            lost = lost_versions(file, view.fleet, view.assignments)
            record = apply_fleet(view, file, RequestContext("", 0.0, ""), agreed=agreed, lost=lost).answer.record
        except IsochroneError as error:
            return str(error)
        models = {name: Assignment(version, pools=file.fleet.pools_of(name)) for name, version in file.versions.items()}
        self._put(KEYS.fleet, encode(record))
        self._put(KEYS.epoch, encode(EpochRecord(record.generation, models)))
        self._put(KEYS.reconciled, encode(ReconciledRecord(record.generation, dict(file.versions))))
        return ""

    def _put(self, key: str, value: bytes) -> None:
        self._revision += 1
        self._entries[key] = Entry(key, value, self._revision)

    @property
    def record(self) -> FleetRecord:
        record = View(KEYS, self._entries).fleet
        assert record is not None
        return record


def _first(places: Places) -> str:
    return fleet_yaml(Shape(workers=2, gateways=1, controllers=1), Path(places.repository), PORTS)


def _drawn(seed: int, places: Places, count: int = FILES) -> list[Mutated]:
    mutations = Mutations(seed, places)
    document = yaml.safe_load(_first(places))
    drawn = []
    for _ in range(count):
        drawn.append(mutations.next(document))
        if not drawn[-1].refused and not drawn[-1].aborts:
            document = yaml.safe_load(drawn[-1].text)
    return drawn


def test_one_seed_is_one_run(places: Places) -> None:
    assert _drawn(3, places) == _drawn(3, places)
    assert _drawn(3, places) != _drawn(4, places)


def test_fifty_files_hold_every_kind(places: Places) -> None:
    kinds = {each.kind for each in _drawn(1, places, 50)}
    assert len(kinds) >= 30
    assert any(each.refused for each in _drawn(1, places, 50))
    assert SPARE in _drawn(1, places, 50)[-1].text or "a spare model more" in kinds


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_file_is_taken_or_refused_as_it_says(seed: int, places: Places, tmp_path: Path) -> None:
    mutations = Mutations(seed, places)
    fleet = Decided(_first(places), tmp_path)
    document = yaml.safe_load(_first(places))
    for _ in range(FILES):
        mutated = mutations.next(document)
        said = fleet.apply(mutated.text, agreed=False)
        if said and mutated.agrees:
            said = fleet.apply(mutated.text, agreed=True)
        if mutated.refused:
            assert said, mutated
            assert all(word in said for word in mutated.refused.split()), (mutated.kind, said)
        else:
            assert not said, (mutated.kind, said)
            before, document = document, yaml.safe_load(mutated.text)
            if mutated.aborts:
                document["models"]["solo"]["version"] = before["models"]["solo"]["version"]
            assert set(MODELS) <= set(document["models"])


def test_the_report_names_what_is_wrong() -> None:
    outcomes = [Outcome("typo", False, 0.1, "no"), Outcome("rules", True, 2.0, wrong="not carried out")]
    good = Answer("c", "g", "solo", 0, 1, outcome=OK)
    bad = Answer("c", "g", "solo", 0, 1, outcome=ERROR, error="503 nobody serves it now, at all")
    lines = report(outcomes, [good, bad])
    assert "files: 2, taken 1, refused 1" in lines
    assert "requests: 2, failed: 1" in lines
    assert "  failed      1  503 nobody serves it now, at" in lines
    assert lines[-1] == "WRONG rules: not carried out"
