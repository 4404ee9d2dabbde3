"""Output of the control commands, without a controller: rollouts, status, figures of load, times, texts."""

from __future__ import annotations

import io

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from isochrone.cli.commands import COMMANDS
from isochrone.cli.console import clock, ordinal, span
from isochrone.cli.fleet.inspecting import status_view
from isochrone.cli.fleet.inspecting.top import Seen, plain_lines
from isochrone.cli.fleet.inspecting.top import picture as top_picture
from isochrone.cli.fleet.inspecting.top_figures import (
    Figures,
    ModelFigures,
    Reading,
    between,
    of_models,
    quantile,
    read_page,
)
from isochrone.cli.main import app
from isochrone.cli.rollouts import view as rollout_view
from isochrone.cli.rollouts.view import new_lines, outcome_text
from isochrone.control.api.messages import GatewayStatus, ModelStatus, Status, StoreState, WorkerStatus
from isochrone.control.state.records import (
    ABORTED,
    CANARY,
    DONE,
    PENDING,
    PREPARING,
    SWITCHING,
    CanaryRule,
    Change,
    Fault,
    ProcessRecord,
    Progress,
    RolloutRecord,
    Split,
    VerdictRecord,
    XdsServerRecord,
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
    )
    shown = " ".join(printed(status_view.picture(status, 100.0)).split())
    assert "unserved: Connection rejected" in shown
    assert "gets no requests: it has stopped" in shown
    assert "cannot read /epoch: no JSON" in shown
    assert "cpu-2 – cpu isochrone ended with status 1 for the third time: ImportError: x" in shown
    assert "cpu-3 – cpu isochrone lost its pod on node a; waits: Unschedulable: 0/1 nodes" in shown
    assert "the record /rollouts/r1 cannot be read and is skipped: no JSON" in shown


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


# Load.

PAGE = """
# TYPE isochrone_gateway_requests_total counter
isochrone_gateway_requests_total{model="a"} 10
isochrone_gateway_requests_total{model="b"} 5
isochrone_gateway_rejected_total{model="a"} 1
isochrone_gateway_rejections_total{model="a",reason="queue_full"} 1
isochrone_gateway_rejections_total{model="a",reason="worker"} 2
isochrone_gateway_in_flight 3
"""
#: As workers write it: a counter of Triton's has no "_total" in its name, but is declared as one.
WORKER_PAGE = """
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="a",version="1"} 100
nv_inference_request_failure{model="a",version="1",reason="OTHER"} 2
nv_inference_request_failure{model="a",version="1",reason="REJECTED"} 7
nv_inference_request_failure{model="a",version="1",reason="CANCELED"} 40
nv_inference_pending_request_count{model="a",version="1"} 4
isochrone_request_duration_seconds_bucket{model="a",version="1",stage="request",le="0.001"} 90
isochrone_request_duration_seconds_bucket{model="a",version="1",stage="request",le="0.002"} 100
isochrone_request_duration_seconds_bucket{model="a",version="1",stage="request",le="+Inf"} 100
isochrone_request_duration_seconds_bucket{model="a",version="1",stage="queue",le="0.001"} 100
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 2.5
process_resident_memory_bytes 104857600
"""


def test_pages_of_gateways_and_workers_are_added_up() -> None:
    assert read_page(PAGE).sums == {"requests": 15.0, "rejected": 3.0, "in_flight": 3.0}
    worker = read_page(WORKER_PAGE)
    assert worker.sums == {
        "requests": 100.0,
        "failures": 2.0,
        "rejected": 7.0,
        "in_flight": 4.0,
        "cpu": 2.5,
        "memory": 104857600.0,
    }
    assert {name: each.sums for name, each in worker.models.items()} == {
        "a": {"requests": 100.0, "failures": 2.0, "rejected": 7.0, "in_flight": 4.0}
    }
    assert worker.buckets == {0.001: 90.0, 0.002: 100.0, float("inf"): 100.0}


def test_figures_are_of_the_time_between_two_readings() -> None:
    worker = read_page(WORKER_PAGE)
    more = Reading(
        {**worker.sums, "requests": 150.0, "cpu": 3.5}, {bound: count + 50 for bound, count in worker.buckets.items()}
    )
    figures = between(worker, more, 2.0)
    assert (figures.requests, figures.failures, figures.in_flight, figures.rejected) == (25.0, 0.0, 4.0, 0.0)
    assert (figures.cpu, figures.memory) == (0.5, 104857600.0)
    # All fifty were under a millisecond.
    assert figures.p99_ms == pytest.approx(0.99)
    # A process that was started again counts from nothing.
    assert between(more, worker, 2.0).requests == 50.0
    assert between(worker, worker, 2.0).p99_ms is None
    assert between(Reading(), worker, 2.0).requests is None


@given(st.lists(st.floats(0.0001, 0.9999), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_lies_in_the_bucket_that_holds_it(values: list[float], share: float) -> None:
    bounds = [0.1, 0.2, 0.5, 1.0, float("inf")]
    found = quantile({bound: float(sum(value <= bound for value in values)) for bound in bounds}, share)
    assert found is not None
    exact = sorted(values)[max(0, -int(-len(values) * share // 1) - 1)]
    bucket = next(index for index, bound in enumerate(bounds) if exact <= bound)
    assert (bounds[bucket - 1] if bucket else 0.0) <= found + 1e-9
    assert found <= bounds[bucket] + 1e-9


def test_models_are_added_up_over_gateways_and_workers() -> None:
    gateway = read_page(PAGE)
    later = Reading(
        {**gateway.sums, "requests": 45.0}, {}, {**gateway.models, "a": Reading({"requests": 40.0, "rejected": 5.0})}
    )
    worker = read_page(WORKER_PAGE)
    grown = {bound: count + 20 for bound, count in worker.buckets.items()}
    model = Reading({**worker.models["a"].sums, "requests": 120.0}, grown)
    busy = Reading(worker.sums, grown, {"a": model, "stage": Reading({"requests": 10.0})})
    found = of_models([(gateway, later, 2.0)] * 2, [(worker, busy, 2.0)] * 2)
    assert (found["a"].requests, found["a"].rejected, found["a"].runs) == (30.0, 2.0, 20.0)
    assert found["a"].in_flight == 8.0
    assert found["a"].p99_ms == pytest.approx(0.99)
    # A model that only runs as a step of an ensemble, and a model without requests.
    assert (found["stage"].requests, found["stage"].runs) == (None, 10.0)
    assert found["b"].requests == 0.0
    # The first reading of a worker has current values only, no rates.
    first = of_models([], [(Reading(), busy, 0.0)])["a"]
    assert (first.runs, first.in_flight, first.p99_ms) == (None, 4.0, None)


def test_what_a_process_does_not_tell_is_left_out() -> None:
    gateway = Figures(1234.0, 0.0, 0.25, 3.0, cpu=0.5, memory=2.0**27)
    seen = Seen({"detector": ModelFigures(1234.0, runs=2468.0, p99_ms=1.5)}, {"gw-1": gateway})
    lines = plain_lines(a_status(), seen, 0.0)
    assert lines[0].endswith("model detector  1,234 req/s  2,468 runs/s  1.50 p99 ms")
    assert lines[1].endswith("model tracker  no figures")
    assert lines[2].endswith(
        "gateway gw-1  1,234 req/s  0 rejected/s  0.2 failed/s  3 in flight  50% cpu  128 MiB memory"
    )
    assert lines[-1].endswith("worker cpu-1  no figures")
    shown = " ".join(printed(top_picture(a_status(), seen)).split())
    assert "detector 1 1,234 – – 2,468 – 1.50" in shown
    assert "gw-1 1,234 0 0.2 3 – 50% 128 MiB" in shown
    assert "cpu-1 (draining) – – – – –" in shown
    assert "rollout r7 is canary: detector 1 → 2" in shown


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
