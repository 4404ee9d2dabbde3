"""A fleet with an audit log: every process keeps one, and together they tell who changed and called what."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from real_fleets import ask, command, small_fleet, until

from bench.control.running_fleet import GATEWAY, WORKER
from isochrone.secure.audit.keys import read_key
from isochrone.secure.audit.reading import logs_in, merged
from isochrone.secure.audit.verification import verify

pytestmark = pytest.mark.long


def test_a_rollout_and_a_request_are_on_record_across_the_fleet(tmp_path: Path) -> None:
    key = tmp_path / "audit.key"
    key.write_text("0123456789abcdef0123456789abcdef")
    directory = tmp_path / "audit"
    fleet = small_fleet(tmp_path)
    document = yaml.safe_load(fleet.text)
    document["security"] = {"audit": {"directory": str(directory), "requests": True, "key": str(key)}}
    fleet.text = yaml.safe_dump(document, sort_keys=False)
    with fleet:
        gateway = fleet.of(GATEWAY)[0].address
        worker = fleet.of(WORKER)[0].address
        assert ask(gateway, "solo", x_agent_id="robot-17").status == 200
        assert command(fleet, "rollout", "start", "solo=2", "--wait").status == 0
        assert until(lambda: ask(gateway, "solo", x_agent_id="robot-17").version == "2")
        # A stranger who calls a worker directly.
        assert ask(worker, "solo").status == 200
        assert command(fleet, "drain", "nobody").status == 1
    logs = logs_in([directory])
    assert len(logs) == 4
    assert all(verify(log, read_key(str(key))).is_sealed for log in logs)
    records = [record for _, record in merged(logs)]
    started = [record for record in records if record.action == "rollout.start"]
    assert [each.outcome for each in started] == ["attempt", "done"]
    assert started[0].details["changes"] == {"solo": "2"}
    loads = [record for record in records if record.action == "model.load" and record.outcome == "attempt"]
    assert {each.actor["kind"] for each in loads} == {"controller"}
    assert sum(each.object == "solo" for each in loads) >= 2
    called = [record.details["version"] for record in records if record.details.get("agent") == "robot-17"]
    assert called[0] == "1"
    assert called[-1] == "2"
    drained = [record.outcome for record in records if record.action == "process.drain"]
    assert drained == ["attempt", "failed"]
