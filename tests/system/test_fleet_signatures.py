"""A fleet whose workers require signatures: only what somebody trusted signed is rolled out; the rollout says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_fleets import applied, ask, command, rewritten, served_by, small_fleet, until

from bench.control.fleet_run import Shape, SupervisedFleet
from bench.control.running_fleet import GATEWAY, WORKER
from isochrone.secure.signing.signer import Signer
from signed_models import sign_version
from signing_keys import Key, make_key

pytestmark = pytest.mark.long


def aborted(fleet: SupervisedFleet, reason: str) -> None:
    """A rollout of version 2 of ``solo`` ends for this reason, in its status and in the events; version 1 stays."""
    started = command(fleet, "rollout", "start", "solo=2")
    assert started.status == 1, started.said
    identity = fleet.api.rollouts()[-1]["identity"]
    record = command(fleet, "rollout", "status", identity, "--json").data
    assert record["state"] == "aborted"
    assert reason in record["reason"]
    assert reason in " ".join(command(fleet, "rollout", "status", identity).said.split())
    events = command(fleet, "events", "--json")
    assert any(identity in line and reason in line for line in events.said.splitlines())
    for worker in fleet.of(WORKER):
        until(lambda: served_by(worker.address)["solo"] == {"1"}, "version 2 to go")  # noqa: B023
    assert ask(fleet.of(GATEWAY)[0].address, "solo").version == "1"


def require_signatures(fleet: SupervisedFleet, key: Key) -> None:
    """Apply a file that asks for them: workers start again, one after the other."""
    trust = {"signatures": {"trust": [str(key.public)]}}
    rewritten(fleet, lambda document: document.update(security=trust))
    applied(fleet)

    def signed(worker: str, address: str) -> bool:
        if "--require-signatures" not in fleet.command_line(worker) or not fleet.responds(worker):
            return False
        return served_by(address).get("solo") == {"1"}

    until(lambda: all(signed(worker.name, worker.address) for worker in fleet.of(WORKER)), "signed models everywhere")


def test_only_what_is_signed_is_rolled_out(tmp_path: Path) -> None:
    models, key = tmp_path / "models", make_key(tmp_path)
    signer = Signer(key.private)
    fleet = small_fleet(tmp_path, Shape(workers=2, gateways=1, controllers=1), versions=2)
    for model in models.iterdir():
        sign_version(signer, model, 1, "first-run")
    solo = models / "solo"
    code = solo / "2" / "model.py"
    signed = code.read_bytes()
    with fleet:
        require_signatures(fleet, key)
        assert ask(fleet.of(GATEWAY)[0].address, "chain").version == "1"
        aborted(fleet, "version 2 is refused: it is not signed")
        sign_version(Signer(make_key(tmp_path, "mallory").private), solo, 2)
        aborted(fleet, "it is signed with a key that is not trusted")
        sign_version(signer, solo, 2, "second-run")
        code.write_bytes(signed + b"# Changed.\n")
        aborted(fleet, "'2/model.py' has other bytes than key sha256:")
        code.write_bytes(signed)
        identity = fleet.api.start_rollout({"solo": "2"}, "strict")
        assert fleet.api.wait(identity)["state"] == "done"
        assert ask(fleet.of(GATEWAY)[0].address, "solo").version == "2"
        # Who signed it, when, and from what.
        expected = {"solo": "second-run", "chain": "first-run", "stage_a": "first-run", "stage_b": "first-run"}

        def is_shown() -> bool:
            shown = {model["name"]: model["signed_by"] for model in fleet.api.status()["models"]}
            return all(shown[name].endswith(f"from {source}") for name, source in expected.items())

        until(is_shown, "the status to show who signed each model")
        assert "from second-run" in " ".join(command(fleet, "status").said.split())
        assert "from second-run" in " ".join(command(fleet, "rollout", "status", identity).said.split())
        events = command(fleet, "events", "--json").said.splitlines()
        assert any("committed epoch" in line and "from second-run" in line for line in events)
