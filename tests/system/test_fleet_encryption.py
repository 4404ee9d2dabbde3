"""A fleet whose workers have model keys: encrypted versions are rolled out; one without its key is aborted with why."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_fleets import applied, ask, command, rewritten, served_by, small_fleet, until

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.running_fleet import GATEWAY, WORKER
from encrypted_models import OTHER_KEY, encrypt_model, write_key
from isochrone.models.repository.encrypted.in_memory import is_in_memory

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not is_in_memory("/dev/shm"), reason="/dev/shm is no tmpfs here"),
]


def give_keys(fleet: SupervisedFleet, source: str) -> None:
    rewritten(fleet, lambda document: document.update(security={"encryption": {"keys": [source]}}))
    applied(fleet)

    def ready(worker: str, address: str) -> bool:
        if "--model-key" not in fleet.command_line(worker) or not fleet.responds(worker):
            return False
        return served_by(address).get("solo") == {"1"}

    until(lambda: all(ready(worker.name, worker.address) for worker in fleet.of(WORKER)), "workers with keys")


def test_encrypted_versions_are_rolled_out_by_workers_with_their_key(tmp_path: Path) -> None:
    key, foreign = write_key(tmp_path), write_key(tmp_path, "foreign.key", OTHER_KEY)
    fleet = small_fleet(tmp_path, Shape(workers=2, gateways=1, controllers=1), versions=2)
    solo = tmp_path / "models" / "solo"
    encrypt_model(foreign, solo, 2, 3)
    encrypt_model(key, solo, 2, 4)
    with fleet:
        give_keys(fleet, key)
        started = command(fleet, "rollout", "start", "solo=3")
        assert started.status == 1, started.said
        record = command(fleet, "rollout", "status", fleet.api.rollouts()[-1]["identity"], "--json").data
        assert record["state"] == "aborted"
        assert "model 'solo' version 3 cannot be decrypted: it needs the key" in record["reason"]
        for worker in fleet.of(WORKER):
            until(lambda: served_by(worker.address)["solo"] == {"1"}, "version 3 to go")  # noqa: B023
        assert ask(fleet.of(GATEWAY)[0].address, "solo").version == "1"
        identity = fleet.api.start_rollout({"solo": "4"}, "strict")
        assert fleet.api.wait(identity)["state"] == "done"
        assert ask(fleet.of(GATEWAY)[0].address, "solo").version == "4"
