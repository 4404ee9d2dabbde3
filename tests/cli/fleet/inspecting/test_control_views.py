"""Output of the control commands, without a controller: rollouts, status, times, texts."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from isochrone.cli.commands import COMMANDS
from isochrone.cli.console import clock, ordinal, span
from isochrone.cli.fleet.inspecting import status_view
from isochrone.cli.main import app
from isochrone.cli.rollouts import view as rollout_view
from isochrone.cli.rollouts.view import new_lines, outcome_text
from isochrone.control.api.messages import GatewayStatus, ModelStatus, Status, StoreState, WorkerStatus
from isochrone.control.state.process_records import ProcessRecord, RestartsRecord, XdsServerRecord
from isochrone.control.state.records import AccessFaultRecord, Fault, Split
from isochrone.control.state.rollout_records import (
    ABORTED,
    CANARY,
    DONE,
    PENDING,
    PREPARING,
    SWITCHING,
    CanaryRule,
    Change,
    Progress,
    RolloutRecord,
    VerdictRecord,
)

CHANGES = {"detector": Change("2", "1")}
OURS = ["apply", "status", "top", "drain", "undrain", "scale", "forget", "events"]
GROUPS = [
    *(("rollout", command) for command in ("start", "status", "list", "abort", "rollback")),
    *(("canary", command) for command in ("status", "promote", "abort")),
]


def printed(what: RenderableType, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(what)
    return console.export_text()


# Commands.


@pytest.mark.parametrize("words", [*((name,) for name in OURS), *GROUPS])
def test_every_command_has_an_example_json_and_the_api_option(words: tuple[str, ...]) -> None:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    assert f"isochrone {' '.join(words)}" in result.output.partition("Examples:")[2]
    assert "--json" in result.output
    assert "--api" in result.output


def test_all_of_them_are_listed() -> None:
    assert {*OURS, "rollout", "canary", "control"} <= set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollout", "start", "detector"], "expected MODEL=VERSION, given 'detector'"),
        (["rollout", "start", "a=1", "a=2"], "a: expected once, given twice"),
        (["status", "--api", "ftp://host"], "--api: expected http://HOST:PORT"),
        (["apply", "/nowhere/fleet.yaml"], "no such file; name a fleet.yaml"),
        (["restore-epoch", "--json"], "--json shows no preview to agree to; add --yes, or --dry-run"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_sentence(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert said in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "said"), [(2, "second"), (10, "tenth"), (11, "11th"), (13, "13th"), (21, "21st"), (102, "102nd")]
)
def test_ordinals(number: int, said: str) -> None:
    assert ordinal(number) == said


# A rollout.


def test_each_step_of_a_rollout_is_told_once() -> None:
    begun = RolloutRecord("r1", CHANGES, by="ada", at=100.0, since={PENDING: 100.0})
    assert new_lines(None, begun)[0] == "r1 version: detector 1 → 2 (fast) by ada"
    preparing = RolloutRecord(
        "r1",
        CHANGES,
        PREPARING,
        at=100.0,
        since={PENDING: 100.0, PREPARING: 100.5},
        workers={"w1": Progress("loading")},
    )
    lines = new_lines(begun, preparing)
    assert lines[0].startswith("r1 preparing at 500 ms")
    assert lines[1:] == ["r1 worker w1 loading"]
    assert new_lines(preparing, preparing) == []
    marked = msgspec.structs.replace(preparing, since={**preparing.since, "first loads": 102.0})
    assert new_lines(preparing, marked) == [], "a stamp for the controller's own time-outs"
    assert "first loads" not in printed(rollout_view.picture(marked, 103.0))
    switching = msgspec.structs.replace(
        preparing, state=SWITCHING, since={**preparing.since, SWITCHING: 101.0}, workers={"w1": Progress("ready")}
    )
    lines = new_lines(preparing, switching)
    assert lines == ["r1 worker w1 ready", "r1 switching at 1.0 s: the commit"], "in the order in which it happened"


def test_a_person_who_gave_no_reason_is_named_as_who_aborted_it() -> None:
    aborted = RolloutRecord("r1", CHANGES, ABORTED, reason="by ada@desk", since={ABORTED: 1.0})
    assert new_lines(None, aborted)[-1] == "rollout r1 was aborted by ada@desk"
    assert "aborted by ada@desk" in printed(rollout_view.picture(aborted, 2.0))
    aborted = msgspec.structs.replace(aborted, reason="wrong artifact (by ada@desk)")
    assert new_lines(None, aborted)[-1] == "rollout r1 was aborted: wrong artifact (by ada@desk)"


def test_the_verdicts_of_a_canary_are_shown_when_it_is_over() -> None:
    verdicts = (VerdictRecord("comparison", True, "0 of 50 differ"), VerdictRecord("canary at 5%", False, "p95 13 ms"))
    record = RolloutRecord("r1", CHANGES, ABORTED, reason="worse", since={ABORTED: 1.0}, verdicts=verdicts)
    shown = printed(rollout_view.picture(record, 2.0))
    assert "comparison: passed: 0 of 50 differ" in shown
    assert "canary at 5%: failed: p95 13 ms" in shown
    lines = new_lines(RolloutRecord("r1", CHANGES, verdicts=verdicts[:1]), record)
    assert "r1 canary at 5%: failed: p95 13 ms" in lines
    assert not [line for line in lines if "comparison" in line]


@pytest.mark.parametrize("state", rollout_view.PHASES)
def test_a_rollback_loads_nothing_and_speaks_of_no_new_version(state: str) -> None:
    record = RolloutRecord("r1", {"detector": Change("1", "2")}, state, "rollback", since={state: 1.0})
    for text in (printed(rollout_view.picture(record, 2.0)), "\n".join(new_lines(None, record))):
        assert "load" not in text.replace("kept loaded", "")
        if state in ("preparing", "draining", "aborting", "aborted"):
            assert "new version" not in text


def test_an_aborted_rollout_says_why() -> None:
    record = RolloutRecord("r1", CHANGES, ABORTED, reason="worker w2: no memory", since={ABORTED: 1.0})
    assert new_lines(None, record)[-1] == "rollout r1 was aborted: worker w2: no memory"
    assert "aborted: worker w2: no memory" in printed(rollout_view.picture(record, 2.0))
    assert "no memory" in printed(rollout_view.listing([record]), 200)


def test_the_picture_has_phases_with_times_workers_and_the_canarys_figures() -> None:
    record = RolloutRecord(
        "r7",
        CHANGES,
        CANARY,
        canary=CanaryRule(weights=(0.05, 0.5)),
        at=100.0,
        since={PENDING: 100.0, PREPARING: 100.25, CANARY: 103.25},
        workers={"cpu-1": Progress("ready"), "cpu-2": Progress("failed", "[odd] detail")},
        step=1,
        note="p95 1.02× of 1,200 requests",
    )
    shown = printed(rollout_view.picture(record, 110.25))
    lines = shown.splitlines()
    assert "canary 5% 50%" in lines[0]
    assert [line.split()[0] for line in lines[1:7]] == [
        "pending",
        "preparing",
        "canary",
        "switching",
        "draining",
        "done",
    ]
    assert "250 ms" in lines[1]
    assert "3.0 s" in lines[2]
    assert "7.0 s" in lines[3]
    assert "✓ cpu-1 ready" in " ".join(shown.split())
    # Markup of rich in a worker's words is only text.
    assert "[odd] detail" in shown
    assert "canary step 2 of 2 (50%): p95 1.02× of 1,200 requests" in shown


def test_one_that_is_done_tells_how_long_it_took() -> None:
    record = RolloutRecord("r1", CHANGES, DONE, at=100.0, since={DONE: 104.5}, epoch=9)
    assert outcome_text(record) == "rollout r1 is done in 4.5 s: detector 1 → 2 (epoch 9)"


# The fleet.


def a_status(connected: bool = True) -> Status:
    return Status(
        fleet="plant",
        generation=3,
        epoch=9,
        leader="c1",
        store=StoreState("sqlite:x", connected, "" if connected else "the disk is full", 12),
        models=(
            ModelStatus("detector", "1", "d", "", Split("2", weight=0.05), (), ("cpu",), "canary", "r7"),
            ModelStatus("tracker", "", "", "", None, (), (), "not served", ""),
        ),
        workers=(WorkerStatus("cpu-1", "h:1", "h:2", "cpu", "", "", "isochrone", True, 90.0),),
        gateways=(
            GatewayStatus("gw-1", "h:3", "", True, 8, False, 0.0),
            GatewayStatus("gw-2", "", "", False, 0, False, 0),
        ),
        rollouts=(RolloutRecord("r7", CHANGES, CANARY),),
    )


def test_the_fleet_is_shown_with_what_is_unusual() -> None:
    shown = " ".join(printed(status_view.picture(a_status(), 100.0)).split())
    assert "fleet plant generation 3 epoch 9 leader c1" in shown
    assert "detector 1 – 2 at 5% canary (r7) cpu" in shown
    assert "tracker – – – not served" in shown
    assert "cpu-1 h:1 cpu isochrone draining for 10.0 s" in shown
    assert "gw-2 – – not registered" in shown
    assert "store is unreachable" not in shown
    assert "the store is unreachable (the disk is full)" in printed(status_view.picture(a_status(False), 100.0))


def test_controllers_that_serve_xds_are_shown_with_the_epoch_of_their_clients() -> None:
    assert "xDS" not in printed(status_view.picture(a_status(), 100.0))
    servers = (XdsServerRecord("c2", "127.0.0.1", 18000, 8, 3), XdsServerRecord("c3", "::1", 18001, 9))
    status = msgspec.structs.replace(a_status(), xds_servers=servers)
    shown = " ".join(printed(status_view.picture(status, 100.0)).split())
    assert "c2 127.0.0.1:18000 3 8" in shown
    assert "c3 [::1]:18001 0 9" in shown


def test_what_would_not_be_answered_is_shown_with_its_reason() -> None:
    status = msgspec.structs.replace(
        a_status(),
        models=(ModelStatus("detector", "1", "d", "", None, (), ("cpu",), "unserved", "", "Connection rejected"),),
        workers=(WorkerStatus("cpu-1", "h:1", "", "cpu", "", "", "isochrone", False, 0.0, "it has stopped"),),
        gateways=(GatewayStatus("gw-1", "h:3", "", True, 9, False, 0.0, {"/epoch": "no JSON"}),),
        rollouts=(),
        processes=(
            ProcessRecord("cpu-2", "worker", "cpu", 3, "ended with status 1", "ImportError: x"),
            ProcessRecord("cpu-3", "worker", "cpu", 1, "lost its pod on node a", waits="Unschedulable: 0/1 nodes"),
        ),
        faults=(Fault("/rollouts/r1", 4, "no JSON"),),
        access_fault=AccessFaultRecord("access.yaml:3: not valid YAML", "c1", 90.0),
    )
    shown = " ".join(printed(status_view.picture(status, 100.0)).split())
    assert "unserved: Connection rejected" in shown
    assert "gets no requests: it has stopped" in shown
    assert "cannot read /epoch: no JSON" in shown
    assert "cpu-2 – cpu isochrone ended with status 1 for the third time: ImportError: x" in shown
    assert "cpu-3 – cpu isochrone lost its pod on node a; waits: Unschedulable: 0/1 nodes" in shown
    assert "the record /rollouts/r1 cannot be read and is skipped: no JSON" in shown
    assert "the access file of controller c1 is not used, and the last rules stay in force: access.yaml:3:" in shown


def test_restarts_that_are_not_over_are_shown() -> None:
    def shown(restarts: RestartsRecord | None) -> str:
        status = msgspec.structs.replace(a_status(), generation=4, restarts=restarts)
        return " ".join(printed(status_view.picture(status, 100.0)).split())

    assert "restart" not in shown(None)
    assert "restart" not in shown(RestartsRecord(4, (), 90.0))
    said = "restarts with the settings of generation 4 are pending for 10.0 s: cpu-1, gw-1"
    assert said in shown(RestartsRecord(4, ("cpu-1", "gw-1"), 90.0))
    many = shown(RestartsRecord(4, tuple(f"cpu-{number}" for number in range(12)), 90.0))
    assert "cpu-9 and 2 more" in many
    behind = shown(RestartsRecord(3, (), 90.0))
    assert "generation 4 is applied, and its processes do not run yet" in behind
    assert "has read generation 3" in behind


def test_what_a_worker_cannot_load_is_shown() -> None:
    failures = {"detector": "version 2: s3://b: cannot list its files", "tracker": "version 1: x"}
    worker = WorkerStatus("cpu-1", "h:1", "", "cpu", "", "", "isochrone", False, 0.0, load_failures=failures)
    status = msgspec.structs.replace(a_status(), workers=(worker,))
    shown = " ".join(printed(status_view.picture(status, 100.0)).split())
    assert "cannot load detector version 2: s3://b: cannot list its files (and 1 more model)" in shown


def test_what_a_gateway_says_while_the_epoch_is_lost_is_marked() -> None:
    known = ModelStatus("detector", "1", "d", "", None, (), ("cpu",), "serving", "", according_to="gw-1")
    status = msgspec.structs.replace(a_status(), models=(known,))
    shown = " ".join(printed(status_view.picture(status, 100.0)).split())
    assert "detector 1 – – serving, says gateway gw-1 cpu" in shown


# Times.


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-1.0, "0 ms"),
        (0.012, "12 ms"),
        (0.9996, "1.0 s"),
        (3.44, "3.4 s"),
        (99.96, "1 min 40 s"),
        (320.0, "5 min 20 s"),
        (3599.7, "1 h 00 min"),
        (7500.0, "2 h 05 min"),
    ],
)
def test_spans_of_time_in_words(seconds: float, said: str) -> None:
    assert span(seconds) == said


def test_no_time_is_no_time() -> None:
    assert clock(0.0) == "–"
    assert clock(86400.0 * 365).startswith("19")
