"""``isochrone apply`` to a running fleet: what it shows, what it does, and above all what it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from real_fleets import applied, ask, command, pids, rewritten, served_by, small_fleet, until

from bench.control.fleet_run import SupervisedFleet
from bench.control.models import write_corrupt_version, write_repository, write_version
from bench.control.running_fleet import GATEWAY, WORKER


def _models(fleet: SupervisedFleet) -> dict[str, str]:
    return fleet.api.versions()


@pytest.mark.long
def test_a_changed_file_converges_and_restarts_nothing(tmp_path: Path) -> None:
    with small_fleet(tmp_path) as fleet:
        gateway = fleet.of(GATEWAY)[0].address
        workers = [part.address for part in fleet.of(WORKER)]
        before = pids(fleet)
        assert all(before.values())

        # A file that was not changed.
        assert "Nothing changes" in command(fleet, "apply", str(fleet.file), "--dry-run").said

        # Shown, and not done.
        def another_version(document: dict[str, Any]) -> None:
            document["models"]["solo"] |= {"version": 2, "slo": {"deadline_ms": 5000}}
            document["pools"]["cpu"]["workers"] = 3

        original = fleet.file.read_text()
        rewritten(fleet, another_version)
        plan = command(fleet, "apply", str(fleet.file), "--dry-run", "--json").data
        assert plan["applied"] is False
        told = {(step["action"], step["name"]): step["detail"] for step in plan["steps"]}
        assert "solo 1 → 2" in told["rollout", "solo"]
        assert told["start", "cpu"] == "cpu-3"
        assert "slo.deadline_ms: 0 → 5000" in told["change", "solo"]
        status = fleet.api.status()
        assert (status["generation"], status["epoch"], len(status["workers"])) == (1, 1, 2)
        assert status["rollouts"] == []
        assert [record["identity"] for record in fleet.api.rollouts()] == ["r1"]

        # A rule alone, that every gateway takes up where it stands: nobody may have more than nothing.
        fleet.file.write_text(original)
        rewritten(fleet, lambda document: document["models"]["solo"].update(traffic={"quota": {"rate": 1, "burst": 1}}))
        applied(fleet)
        until(lambda: {ask(gateway, "solo").status for _ in range(3)} >= {429}, "the quota")
        assert ask(gateway, "chain").status == 200
        fleet.file.write_text(original)
        applied(fleet)
        until(lambda: {ask(gateway, "solo").status for _ in range(3)} == {200}, "the end of the quota")

        # A new version, a model that is new, and one that goes.
        write_repository(tmp_path / "more", 1)
        (tmp_path / "more" / "solo").rename(tmp_path / "models" / "fresh")
        config = tmp_path / "models" / "fresh" / "config.pbtxt"
        config.write_text(config.read_text().replace('name: "solo"', 'name: "fresh"'))

        def others(document: dict[str, Any]) -> None:
            for name in ("stage_a", "stage_b", "chain"):
                document["models"][name]["version"] = 2
            del document["models"]["solo"]
            document["models"]["fresh"] = {"version": 1}

        rewritten(fleet, others)
        said = applied(fleet).said
        assert "fresh 1 (new)" in said
        assert "no longer served" in said
        wanted = {"chain": "2", "stage_a": "2", "stage_b": "2", "fresh": "1"}
        until(lambda: _models(fleet) == wanted and not fleet.api.status()["rollouts"], "the new models")
        assert ask(gateway, "chain").version == "2"
        assert ask(gateway, "fresh").version == "1"
        until(lambda: ask(gateway, "solo").status == 404, "the model to be gone")
        until(lambda: all("solo" not in served_by(worker) for worker in workers), "the workers to let it go")
        # The pipeline changed as one.
        rollouts = [set(record["changes"]) for record in fleet.api.rollouts()]
        assert {"chain", "stage_a", "stage_b"} in rollouts

        # A version that cannot be; when it is mended, the same file asks for it again.
        write_corrupt_version(tmp_path / "models", "fresh", 2)
        rewritten(fleet, lambda document: document["models"]["fresh"].update(version=2))
        ended = command(fleet, "apply", str(fleet.file), "--yes")
        assert ended.status == 1
        last = fleet.api.rollouts()[-1]
        assert last["state"] == "aborted"
        assert f"rollout {last['identity']} was aborted: {last['reason']}" in ended.said
        assert ask(gateway, "fresh").version == "1"
        write_version(tmp_path / "models", "fresh", 2)
        # It returns when the version is served.
        assert "fresh 1 → 2" in applied(fleet).said
        assert not fleet.api.status()["rollouts"]
        until(lambda: ask(gateway, "fresh").version == "2", "the version to be served at last")
        assert "Nothing changes" in applied(fleet).said

        # What makes it another fleet is refused, and nothing of the file is done.
        def elsewhere(document: dict[str, Any]) -> None:
            document["store"]["url"] = "sqlite:other.db"
            document["models"]["fresh"]["slo"] = {"deadline_ms": 1}

        rewritten(fleet, elsewhere)
        generation = fleet.api.status()["generation"]
        refused = command(fleet, "apply", str(fleet.file), "--yes")
        assert refused.status == 1
        assert "store.url: cannot change from 'sqlite:fleet.db' to 'sqlite:other.db'" in refused.said
        assert fleet.api.status()["generation"] == generation
        assert httpx.get(f"http://{gateway}/v2/health/ready", trust_env=False).status_code == 200

        assert pids(fleet) == before
