"""The control commands against a real API on a real port: what they print, what they write, and how they end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from control_thread import KEYS, ControlThread, control_thread
from typer.testing import CliRunner

from isochrone.cli.api_client import ApiClient, user
from isochrone.cli.main import app
from isochrone.control.api.messages import Event
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, ReconciledRecord
from isochrone.control.state.rollout_records import (
    ABORTED,
    CANARY,
    DONE,
    PENDING,
    PREPARING,
    CanaryRule,
    Change,
    Progress,
    RolloutRecord,
)

FLEET = """
name: plant
pools: {cpu: {workers: 1, max: 4}}
models: {detector: {version: 1}, tracker: {version: 1}}
"""


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlThread]:
    with control_thread(tmp_path) as control:
        yield control


def isochrone(control: ControlThread, *words: str) -> Any:
    return CliRunner().invoke(app, [*words, "--api", control.url])


def printed(result: Any) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.fixture
def serving(control: ControlThread) -> ControlThread:
    """A fleet that was applied and serves version 1 of everything."""
    (control.directory / "fleet.yaml").write_text(FLEET)
    assert isochrone(control, "apply", str(control.directory / "fleet.yaml"), "--yes", "--no-wait").exit_code == 0
    models = {name: Assignment("1", pools=("cpu",)) for name in ("detector", "tracker")}
    control.write(KEYS.epoch, EpochRecord(3, models))
    control.write(KEYS.worker("cpu-1"), WorkerRecord("cpu-1", "127.0.0.1", 1, 1, pool="cpu"))
    control.write(KEYS.gateway("gw-1"), GatewayRecord("gw-1", "127.0.0.1", 2, epoch=3))
    return control


Step = Callable[[RolloutRecord], RolloutRecord]


def lead(control: ControlThread, identity: str, condition: str, *steps: Step) -> threading.Thread:
    """Plays the leader in the background: each step is written once the rollout says what is waited for."""

    def play() -> None:
        record = control.rollout_when(identity, condition)
        for step in steps:
            record = step(record)
            control.write(KEYS.rollout(identity), record)

    thread = threading.Thread(target=play)
    thread.start()
    return thread


def entered(state: str, **fields: Any) -> Step:
    def enter(record: RolloutRecord) -> RolloutRecord:
        since = {**record.since, state: record.at + len(record.since)}
        return msgspec.structs.replace(record, state=state, since=since, **fields)

    return enter


def test_a_file_is_planned_then_applied(control: ControlThread) -> None:
    path = control.directory / "fleet.yaml"
    path.write_text(FLEET)
    planned = printed(isochrone(control, "apply", str(path), "--dry-run", "--json"))
    assert (planned["applied"], planned["generation"]) == (False, 0)
    # Nobody can be asked here: there is no terminal.
    refused = isochrone(control, "apply", str(path))
    assert refused.exit_code == 1
    assert "start    pool" in refused.output
    assert "The plan takes nothing away; it would start controller control, start gateway gw, " in refused.output
    assert "apply it with --yes" in refused.output
    shown = isochrone(control, "apply", str(path), "--yes", "--no-wait")
    assert shown.exit_code == 0
    assert "start    pool" in shown.output
    assert "Applied as generation 1" in shown.output
    control.write(KEYS.epoch, EpochRecord(1, {name: Assignment("1") for name in ("detector", "tracker")}))
    assert "Nothing changes." in isochrone(control, "apply", str(path)).output
    path.write_text(FLEET.replace("max:", "mx:"))
    wrong = isochrone(control, "apply", str(path))
    assert wrong.exit_code == 1
    assert f"{path}:3: pools.cpu.mx" in wrong.output
    assert "did you mean 'max'" in wrong.output


def _leads(control: ControlThread, state: str, **fields: Any) -> threading.Thread:
    """Plays the leader: starts the rollout of the file that is applied, and ends it."""

    def play() -> None:
        control.wait_applied()
        record = RolloutRecord("r1", {"detector": Change("1")}, by="fleet.yaml", at=100.0, since={PENDING: 100.0})
        control.write(KEYS.rollout("r1"), record)
        control.write(KEYS.reconciled, ReconciledRecord(1))
        control.write(KEYS.rollout("r1"), entered(state, **fields)(record))

    control.write(KEYS.leader, b"c1")
    thread = threading.Thread(target=play)
    thread.start()
    return thread


def test_applying_waits_for_the_rollouts_of_the_file(control: ControlThread) -> None:
    path = control.directory / "fleet.yaml"
    path.write_text(FLEET)
    leader = _leads(control, DONE, epoch=1)
    result = isochrone(control, "apply", str(path), "--yes")
    leader.join(30)
    assert result.exit_code == 0, result.output
    assert "Applied as generation 1.\n" in result.output
    assert "rollout r1 is done" in result.output
    control.write(KEYS.epoch, EpochRecord(1, {name: Assignment("1") for name in ("detector", "tracker")}))
    # Nothing is left to wait for.
    assert isochrone(control, "apply", str(path), "--yes").exit_code == 0


def test_a_rollout_of_the_file_that_is_aborted_fails_the_apply(control: ControlThread) -> None:
    path = control.directory / "fleet.yaml"
    path.write_text(FLEET)
    leader = _leads(control, ABORTED, reason="worker cpu-1: no memory")
    result = isochrone(control, "apply", str(path), "--yes", "--json")
    leader.join(30)
    assert result.exit_code == 1
    told = json.loads(result.output)
    assert told["applied"] is True
    assert [(each["identity"], each["reason"]) for each in told["rollouts"]] == [("r1", "worker cpu-1: no memory")]
    shown = isochrone(control, "status").output
    assert "rollout r1 was aborted: worker cpu-1: no memory" in shown


def test_applying_where_nobody_leads_says_so(control: ControlThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isochrone.cli.rollouts.waiting._LEADER_SECONDS", 0.0)
    path = control.directory / "fleet.yaml"
    path.write_text(FLEET)
    result = isochrone(control, "apply", str(path), "--yes")
    assert result.exit_code == 1
    assert "generation 1 is applied, but no controller leads" in result.output


def test_status_shows_the_fleet(serving: ControlThread) -> None:
    shown = isochrone(serving, "status").output
    assert "fleet plant" in shown
    assert "detector" in shown
    status = printed(isochrone(serving, "status", "--json"))
    assert [worker["name"] for worker in status["workers"]] == ["cpu-1"]
    assert status["store"]["connected"] is True


def test_a_rollout_is_watched_to_its_end(serving: ControlThread) -> None:
    leader = lead(
        serving,
        "r1",
        "identity",
        entered(PREPARING, workers={"cpu-1": Progress("loading")}),
        lambda record: msgspec.structs.replace(record, workers={"cpu-1": Progress("ready")}),
        entered(DONE, epoch=4),
    )
    result = isochrone(serving, "rollout", "start", "detector=2", "--cutover", "strict")
    leader.join(30)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[-1].startswith("rollout r1 is done")
    assert any(line.startswith("r1 done at") for line in lines)
    listed = isochrone(serving, "rollout", "status").output
    assert "detector 1 → 2" in listed
    one = printed(isochrone(serving, "rollout", "status", "r1", "--json"))
    assert (one["state"], one["cutover"], one["by"]) == (DONE, "strict", user())


def test_an_aborted_rollout_ends_with_status_1_and_its_reason(serving: ControlThread) -> None:
    leader = lead(serving, "r1", "identity", entered(PREPARING), entered(ABORTED, reason="worker cpu-1: no memory"))
    result = isochrone(serving, "rollout", "start", "detector=2")
    leader.join(30)
    assert result.exit_code == 1
    assert "rollout r1 was aborted: worker cpu-1: no memory" in result.output
    assert "worker cpu-1: no memory" in isochrone(serving, "rollout", "status", "r1").output


def test_without_waiting_the_command_returns_at_once(serving: ControlThread) -> None:
    result = isochrone(serving, "rollout", "start", "detector=2", "--no-wait", "--no-canary")
    assert result.exit_code == 0
    assert "isochrone rollout status r1" in result.output
    taken = isochrone(serving, "rollout", "start", "detector=3")
    assert taken.exit_code == 1
    assert "isochrone rollout start: rollout r1 is changing detector (pending)" in taken.output


def test_abort_and_rollback_wait_for_the_way_back(serving: ControlThread) -> None:
    serving.write(KEYS.rollout_number, b"1")
    serving.write(KEYS.rollout("r1"), RolloutRecord("r1", {"detector": Change("2", "1")}, PREPARING))
    leader = lead(serving, "r1", "abort_asked", entered(ABORTED, reason="wrong file"))
    result = isochrone(serving, "rollout", "abort", "r1", "--reason", "wrong file")
    leader.join(30)
    assert result.exit_code == 0, result.output
    assert "aborted: wrong file" in result.output
    serving.write(KEYS.epoch, EpochRecord(4, {"detector": Assignment("2", previous="1")}))
    leader = lead(serving, "r2", "identity", entered(DONE, epoch=5))
    back = isochrone(serving, "rollout", "rollback", "detector", "--json")
    leader.join(30)
    record = printed(back)
    assert (record["kind"], record["state"], record["changes"]["detector"]["version"]) == ("rollback", DONE, "1")
    assert isochrone(serving, "rollout", "rollback", "tracker").exit_code == 1


def test_the_canary_is_found_without_its_name(serving: ControlThread) -> None:
    assert "No rollout is in canary" in isochrone(serving, "canary", "status").output
    none = isochrone(serving, "canary", "promote")
    assert (none.exit_code, "no rollout is in canary" in none.output) == (1, True)
    trying = RolloutRecord("r1", {"detector": Change("2", "1")}, CANARY, canary=CanaryRule(), note="p95 0.98×")
    serving.write(KEYS.rollout("r1"), trying)
    assert "p95 0.98×" in isochrone(serving, "canary", "status").output
    assert "r1 is promoted" in isochrone(serving, "canary", "promote").output
    leader = lead(serving, "r1", "abort_asked", entered(ABORTED, reason="odd boxes"))
    result = isochrone(serving, "canary", "abort", "--reason", "odd boxes")
    leader.join(30)
    assert result.exit_code == 0, result.output
    for identity in ("r2", "r3"):
        serving.write(KEYS.rollout(identity), RolloutRecord(identity, {"tracker": Change("2", "1")}, CANARY))
    several = isochrone(serving, "canary", "promote")
    assert (several.exit_code, "name one: r2, r3" in several.output) == (1, True)


def test_scale_drain_forget_and_what_is_kept_of_it(serving: ControlThread) -> None:
    assert "cpu-2" in isochrone(serving, "scale", "cpu", "2").output
    assert "already" in isochrone(serving, "scale", "cpu", "2").output
    assert isochrone(serving, "drain", "cpu-1").output == "cpu-1 is draining\n"
    assert isochrone(serving, "undrain", "cpu-1").output == "cpu-1 takes work again\n"
    serving.write(KEYS.known_gateway("gw-9"), b"i")
    assert isochrone(serving, "forget", "gw-9").output == "gateway gw-9 is forgotten\n"
    lines = [json.loads(line) for line in isochrone(serving, "events", "--json").output.splitlines()]
    assert [line["what"] for line in lines] == ["fleet applied", "scaled", "drain", "undrain", "gateway forgotten"]
    assert {line["who"] for line in lines} == {user()}
    last = isochrone(serving, "events", "--limit", "1").output
    assert last.count("\n") == 1
    assert "gateway forgotten  gw-9" in last


def test_events_are_followed_as_they_happen(serving: ControlThread) -> None:
    with ApiClient(serving.url) as client:
        source = client.follow("/v1/events", Event, limit=1, follow=1)
        assert next(source).what == "fleet applied"
        for command in ("drain", "undrain"):
            isochrone(serving, command, "cpu-1")
            assert next(source).what == command


def test_top_tells_what_it_can(serving: ControlThread) -> None:
    result = isochrone(serving, "top", "--count", "1", "--interval", "0.1")
    assert result.exit_code == 0, result.output
    assert "gateway gw-1  no figures" in result.output
    assert "worker cpu-1  no figures" in result.output
    assert json.loads(isochrone(serving, "top", "--count", "1", "--interval", "0.1", "--json").output) == {
        "models": {},
        "gateways": {},
        "workers": {},
    }


def test_nobody_there_is_one_sentence() -> None:
    result = CliRunner().invoke(app, ["status", "--api", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "no controller answers at http://127.0.0.1:1" in result.output
    assert "isochrone up" in result.output
