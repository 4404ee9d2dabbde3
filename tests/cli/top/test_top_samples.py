"""Samples of ``isochrone top``: of a fleet's status, of one page; and their plain lines."""

from __future__ import annotations

import msgspec
import pytest

from isochrone.cli.api_client import ApiFailed
from isochrone.cli.top.fleet_samples import fleet_sample
from isochrone.cli.top.page_samples import page_sample
from isochrone.cli.top.plain import plain_lines
from isochrone.cli.top.readings import Reading, read_page
from isochrone.cli.top.samples import CHANGING, FAULT, GATEWAYS, MODELS, USUAL, WARNING, WORKERS, Line
from isochrone.cli.top.sources import page_url
from isochrone.control.api.messages import GatewayStatus, ModelStatus, Status, StoreState, WorkerStatus
from isochrone.control.state.process_records import ProcessRecord
from isochrone.control.state.records import Split
from isochrone.control.state.rollout_records import CANARY, Change, RolloutRecord

GATEWAY_PAGE = """
isochrone_gateway_requests_total{model="detector"} REQUESTS
isochrone_gateway_rejections_total{model="detector",reason="quota"} 0
isochrone_gateway_in_flight 3
isochrone_gateway_version{model="detector"} 2
isochrone_gateway_worker_healthy{worker="h:1"} 1
isochrone_gateway_worker_ejected{worker="h:1"} 1
isochrone_gateway_worker_in_flight{worker="h:1"} 2
isochrone_gateway_worker_round_trip_seconds{worker="h:1"} 0.002
isochrone_gateway_worker_healthy{worker="h:2"} 0
process_cpu_seconds_total 1.5
process_resident_memory_bytes 134217728
"""
WORKER_PAGE = """
nv_inference_request_success{model="detector",version="1"} REQUESTS
nv_inference_request_failure{model="detector",version="1",reason="REJECTED"} 2
nv_inference_request_success{model="detector",version="2"} 0
nv_inference_pending_request_count{model="detector",version="1"} 1
"""


def pair(page: str, before: int, after: int) -> tuple[Reading, Reading, float]:
    return read_page(page.replace("REQUESTS", str(before))), read_page(page.replace("REQUESTS", str(after))), 2.0


def a_status() -> Status:
    return Status(
        fleet="plant",
        generation=3,
        epoch=9,
        leader="c1",
        store=StoreState("sqlite:x", False, "the disk is full", 12),
        models=(
            ModelStatus("detector", "1", "d", "", Split("2", weight=0.05), (), ("cpu",), "canary", "r7"),
            ModelStatus("tracker", "", "", "", None, (), (), "not served", ""),
        ),
        workers=(
            WorkerStatus("cpu-1", "h:1", "h:2", "cpu", "", "", "isochrone", True, 90.0),
            WorkerStatus("cpu-2", "h:3", "", "cpu", "", "", "isochrone", False, 0.0, "it has stopped"),
        ),
        gateways=(
            GatewayStatus("gw-1", "h:3", "", True, 9, False, 0.0),
            GatewayStatus("gw-2", "h:4", "", True, 8, False, 0.0),
        ),
        rollouts=(RolloutRecord("r7", {"detector": Change("2", "1")}, CANARY),),
        processes=(ProcessRecord("cpu-3", "worker", "cpu", 1, "ended with status 1", ""),),
    )


def by_name(lines: tuple[Line, ...]) -> dict[str, Line]:
    return {line.name: line for line in lines}


def test_a_fleet_has_lines_with_states_and_what_is_known_of_them() -> None:
    sample = fleet_sample(a_status(), {"gw-1": pair(GATEWAY_PAGE, 0, 2468), "cpu-1": pair(WORKER_PAGE, 10, 30)}, 5.0)
    assert sample.title == "fleet plant  epoch 9  leader c1"
    models = by_name(sample.lines[MODELS])
    assert models["detector"].figures["requests"] == 1234.0
    assert models["detector"].figures["runs"] == 10.0
    assert (models["detector"].label, models["detector"].severity) == ("1", CHANGING)
    assert ("canary", "2 at 5%") in models["detector"].facts
    assert (models["tracker"].state, models["tracker"].severity) == ("not served", FAULT)
    workers = by_name(sample.lines[WORKERS])
    assert (workers["cpu-1"].state, workers["cpu-1"].severity, workers["cpu-1"].label) == ("draining", WARNING, "cpu")
    assert workers["cpu-2"].severity == FAULT
    assert ("fault", "it has stopped") in workers["cpu-2"].facts
    gateways = by_name(sample.lines[GATEWAYS])
    assert [gateways[name].state for name in ("gw-1", "gw-2")] == ["serving", "behind"]
    assert [notice.text for notice in sample.notices] == [
        "the store is unreachable: the disk is full",
        "worker cpu-3 ended with status 1",
        "rollout r7 is canary: detector 1 → 2",
    ]
    assert [notice.severity for notice in sample.notices] == [FAULT, FAULT, CHANGING]


def test_a_fleet_without_faults_has_no_notices() -> None:
    status = msgspec.structs.replace(a_status(), store=StoreState("x", True, "", 1), rollouts=(), processes=())
    assert fleet_sample(status, {}, 5.0).notices == ()


def test_plain_lines_leave_out_what_is_unknown() -> None:
    lines = plain_lines(fleet_sample(a_status(), {"gw-1": pair(GATEWAY_PAGE, 0, 2468)}, 0.0))
    assert [line.partition("  ")[2] for line in lines] == [
        "model detector  1,234 req/s  0 rejected/s",
        "model tracker  no figures",
        "gateway gw-1  1,234 req/s  0 rejected/s  3 in flight  0% cpu  128 MiB memory",
        "gateway gw-2  no figures",
        "worker cpu-1  no figures",
        "worker cpu-2  no figures",
    ]


def test_the_page_of_one_gateway_has_its_models_and_its_workers() -> None:
    sample = page_sample("http://h:8002/metrics", pair(GATEWAY_PAGE, 0, 20), 5.0)
    assert sample.title == "gateway h:8002"
    (model,) = sample.lines[MODELS]
    assert (model.name, model.label, model.figures["requests"]) == ("detector", "2", 10.0)
    (gateway,) = sample.lines[GATEWAYS]
    assert (gateway.name, gateway.figures["requests"], gateway.figures["in_flight"]) == ("h:8002", 10.0, 3.0)
    workers = by_name(sample.lines[WORKERS])
    assert (workers["h:1"].state, workers["h:1"].severity) == ("ejected", WARNING)
    assert (workers["h:1"].figures["in_flight"], workers["h:1"].facts) == (2.0, (("round trip", "2.000 ms"),))
    assert (workers["h:2"].state, workers["h:2"].figures["in_flight"]) == ("unhealthy", None)


def test_the_page_of_one_worker_has_its_models_with_their_requests() -> None:
    sample = page_sample("http://h:8002/metrics", pair(WORKER_PAGE, 10, 30), 5.0)
    assert sample.title == "worker h:8002"
    (model,) = sample.lines[MODELS]
    assert (model.label, model.figures["requests"], model.severity) == ("1, 2", 10.0, USUAL)
    (worker,) = sample.lines[WORKERS]
    assert (worker.name, worker.figures["requests"]) == ("h:8002", 10.0)
    assert sample.lines[GATEWAYS] == ()
    # The first reading has no rates, and all lines.
    first = page_sample("http://h:8002/metrics", (Reading(), sample.pairs[WORKERS]["h:8002"][1], 0.0), 5.0)
    assert first.lines[MODELS][0].figures["requests"] is None
    gateway = page_sample("http://h:1/metrics", (Reading(), read_page(GATEWAY_PAGE.replace("REQUESTS", "1")), 0.0), 5.0)
    assert [line.name for line in gateway.lines[MODELS]] == ["detector"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("localhost:8002", "http://localhost:8002/metrics"),
        ("http://h:1/", "http://h:1/metrics"),
        ("https://h:1", "https://h:1/metrics"),
        ("http://[::1]:8002", "http://[::1]:8002/metrics"),
        ("http://h:1/other/metrics", "http://h:1/other/metrics"),
    ],
)
def test_a_url_is_that_of_a_metrics_port_or_page(given: str, expected: str) -> None:
    assert page_url(given) == expected


@pytest.mark.parametrize("given", ["grpc://h:1", "http://", "http://h:port", "http://h:0", "http://[::1"])
def test_other_urls_are_rejected(given: str) -> None:
    with pytest.raises(ApiFailed, match="URL: expected http://HOST:PORT of a metrics port"):
        page_url(given)
