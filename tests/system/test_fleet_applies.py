"""The apply run in short: wrong and restructured files, one after the other, on a fleet under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.control.applies import Applying, make_places
from bench.control.file_mutations import Mutations
from bench.control.fleet_run import Shape, SupervisedFleet
from fleet_load import FleetLoad

pytestmark = pytest.mark.long


def test_no_file_costs_a_request_and_every_refusal_is_explained(tmp_path: Path) -> None:
    places = make_places(tmp_path)
    shape = Shape(workers=2, gateways=1, controllers=1)
    with SupervisedFleet(tmp_path / "fleet", Path(places.repository), shape) as fleet:
        with FleetLoad(fleet.gateways, rate=20.0) as load:
            applying = Applying(fleet, Mutations(1, places))
            outcomes = [applying.one() for _ in range(7)]
            load.wait_answers()
        assert [f"{outcome.kind}: {outcome.wrong}" for outcome in outcomes if outcome.wrong] == []
        assert {outcome.taken for outcome in outcomes} == {True, False}
        assert [answer.error for answer in load.failed] == []
