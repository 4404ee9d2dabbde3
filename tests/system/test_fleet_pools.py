"""A model that is given to another pool in fleet.yaml: it is loaded there first, and no request fails meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from real_fleets import applied, ask, rewritten, served_by, small_fleet, until

from bench.control.fleet_run import Shape
from bench.control.running_fleet import GATEWAY


@pytest.mark.long
def test_a_model_moves_to_another_pool_under_requests(tmp_path: Path) -> None:
    shape = Shape(workers=1, gateways=1, controllers=1, pools={"edge": {"workers": 1}})
    with small_fleet(tmp_path, shape) as fleet:
        gateway = fleet.of(GATEWAY)[0].address
        until(lambda: len(fleet.api.status()["workers"]) == 2, "both workers")
        workers = {worker["pool"]: worker["address"] for worker in fleet.api.status()["workers"]}
        assert set(workers) == {"cpu", "edge"}

        def moved(*pools: str) -> None:
            rewritten(fleet, lambda document: document["models"]["solo"].update(pools=list(pools)))
            applied(fleet)
            until(
                lambda: all(("solo" in served_by(address)) == (pool in pools) for pool, address in workers.items()),
                f"solo in {pools} alone",
            )

        moved("cpu")
        answers: list[int] = []
        over = threading.Event()

        def context() -> None:
            while not over.is_set():
                answers.append(ask(gateway, "solo").status)

        caller = threading.Thread(target=context)
        caller.start()
        try:
            moved("edge")
            had = len(answers)
            until(lambda: len(answers) > had + 20, "answers from the new pool")
        finally:
            over.set()
            caller.join()
        assert set(answers) == {200}
        changes = [record["changes"]["solo"] for record in fleet.api.rollouts() if "solo" in record["changes"]]
        assert any(change["before"] == change["version"] == "1" for change in changes)
