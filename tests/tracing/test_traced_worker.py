"""A real worker and a real OTLP receiver: connected traces over both exporters, batches, errors, steps, settings."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
from traced_models import (
    call_grpc,
    call_http,
    context,
    identity,
    write_batched,
    write_ensemble,
    write_remote,
    write_sleeps,
)

from otlp_receiver import Receiver, attributes, receiving
from server_process import ServerProcess, StartServer, start_server

ON = ("--trace-config=level=TIMESTAMPS", "--trace-config=rate=0")
TOGETHER = 4


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("traced") / "models"
    write_sleeps(repository / "sleeps")
    write_sleeps(repository / "second")
    write_batched(repository / "batched", TOGETHER)
    write_ensemble(repository / "both", "sleeps", "second")
    return repository


@pytest.fixture(scope="module", params=["http", "grpc"])
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    with receiving(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def server(models: Path, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A worker that traces what is kept for a reason of its own, and no share of the rest."""
    resource = "--trace-config=opentelemetry,resource=service.name=edge"
    log_path = tmp_path_factory.mktemp("log") / "log"
    with start_server(models, *receiver.flags, *ON, resource, log_path=log_path) as made:
        yield made


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_one_connected_trace(server: ServerProcess, receiver: Receiver, transport: str) -> None:
    trace = 0xA0 + (transport == "grpc")
    headers = {"traceparent": context(trace), "tracestate": "vendor=1"}
    if transport == "http":
        assert call_http(server.http_url, "sleeps", 5, **headers) == 200
    else:
        call_grpc(server.grpc_url, "sleeps", 5, headers)
    found = receiver.wait_for(lambda spans: [each for each in spans if each.trace_id == identity(trace, 16)])
    request, *rest = found
    assert request.name == "infer sleeps"
    assert request.parent_span_id == identity(0xABC, 8)
    assert request.trace_state == "vendor=1"
    assert attributes(request)["isochrone.kept"] == "caller"
    assert attributes(request)["isochrone.version"] == "1"
    children = receiver.children(request)
    assert {*children} <= {"queue", "batch"}
    batch = children["batch"]
    compute = receiver.children(batch)["compute"]
    assert {each.span_id for each in rest} == {each.span_id for each in (*children.values(), compute)}
    assert request.start_time_unix_nano <= batch.start_time_unix_nano <= compute.start_time_unix_nano
    assert compute.end_time_unix_nano <= batch.end_time_unix_nano <= request.end_time_unix_nano
    assert compute.end_time_unix_nano - compute.start_time_unix_nano >= 5_000_000
    assert receiver.resources[-1]["service.name"] == "edge"


def test_members_of_a_batch_are_linked(server: ServerProcess, receiver: Receiver) -> None:
    def call(number: int) -> None:
        call_http(server.http_url, "batched", 1, rows=1, request_id=str(number), traceparent=context(0xB0 + number))

    # The last of them is not sampled by its caller: it has no span here, and the link is to the caller's.
    callers = [threading.Thread(target=call, args=(number,)) for number in range(TOGETHER - 1)]
    unsampled = {"traceparent": context(0xBF, is_sampled=False)}
    callers.append(threading.Thread(target=call_http, args=(server.http_url, "batched", 1, 1), kwargs=unsampled))
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    requests = [receiver.request("batched", isochrone__request_id=str(number)) for number in range(TOGETHER - 1)]
    batches = [receiver.children(request)["batch"] for request in requests]
    assert len({attributes(batch)["isochrone.batch.id"] for batch in batches}) == 1
    for number, batch in enumerate(batches):
        assert attributes(batch)["isochrone.batch.requests"] == TOGETHER
        assert attributes(batch)["isochrone.batch.rows"] == TOGETHER
        others = {(each.trace_id, each.span_id) for each in requests if each is not requests[number]}
        linked = {(link.trace_id, link.span_id) for link in batch.links}
        assert linked == others | {(identity(0xBF, 16), identity(0xABC, 8))}


def test_errors_and_misses_are_kept(server: ServerProcess, receiver: Receiver) -> None:
    assert call_http(server.http_url, "sleeps", -1, request_id="raises") == 500
    assert call_http(server.http_url, "nowhere", 1, request_id="unknown") == 404
    assert call_http(server.http_url, "batched", 1, request_id="shape") == 400
    assert call_http(server.http_url, "sleeps", 200, request_id="late", x_request_timeout_ms="20") in (200, 504)
    failed = receiver.request("sleeps", isochrone__request_id="raises")
    assert failed.status.code == failed.status.STATUS_CODE_ERROR
    assert "a negative number" in failed.status.message
    assert attributes(failed)["isochrone.kept"] == "error"
    assert attributes(failed)["error.type"] == "model_failed"
    assert attributes(receiver.request("nowhere", isochrone__request_id="unknown"))["error.type"] == "not_found"
    assert attributes(receiver.request("batched", isochrone__request_id="shape"))["isochrone.kept"] == "error"
    late = receiver.request("sleeps", isochrone__request_id="late")
    assert attributes(late)["isochrone.kept"] == "deadline_miss"
    assert attributes(late)["isochrone.deadline_ms"] == 20.0


@pytest.mark.parametrize("is_late", [False, True])
def test_steps_of_an_ensemble_are_in_its_trace(server: ServerProcess, receiver: Receiver, is_late: bool) -> None:
    """Also where the reason is known only in the end."""
    trace = 0xC0 + is_late
    headers = {"traceparent": context(trace, is_sampled=not is_late)}
    if is_late:
        headers["x_request_timeout_ms"] = "30"
    call_http(server.http_url, "both", 20, **headers)
    spans = receiver.wait_for(lambda spans: [each for each in spans if each.trace_id == identity(trace, 16)])
    whole = spans[0]
    assert whole.name == "infer both"
    assert attributes(whole)["isochrone.kept"] == ("deadline_miss" if is_late else "caller")
    steps = receiver.children(whole)
    assert "infer sleeps" in steps
    assert "compute" in receiver.children(receiver.children(steps["infer sleeps"])["batch"])
    if not is_late:
        assert {*steps} == {"infer sleeps", "infer second"}


@pytest.mark.long
def test_a_remote_stage_is_a_child_of_this_workers_span(
    server: ServerProcess, receiver: Receiver, server_factory: StartServer, tmp_path: Path
) -> None:
    repository = tmp_path / "models"
    write_sleeps(repository / "first")
    write_remote(repository / "far", server.http_url, "sleeps")
    write_ensemble(repository / "two_stages", "first", "far")
    with server_factory(repository, *receiver.flags, *ON) as near:
        assert call_http(near.http_url, "two_stages", 1, traceparent=context(0xD0)) == 200
        whole = receiver.request("two_stages")
        sent = receiver.request("far")
        assert sent.parent_span_id == whole.span_id

        def far_side(spans: list[Any]) -> Any:
            return next((each for each in spans if each.parent_span_id == sent.span_id), None)

        arrived = receiver.wait_for(far_side)
    assert arrived.name == "infer sleeps"
    assert arrived.trace_id == sent.trace_id == whole.trace_id == identity(0xD0, 16)


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_settings_by_stock_clients(server: ServerProcess, receiver: Receiver, kind: str) -> None:
    client: Any = tritonclient.http.InferenceServerClient(server.http_url)
    if kind == "grpc":
        client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
    name = f"settings-{kind}"
    try:
        client.update_trace_settings("second", {"trace_level": ["TIMESTAMPS"], "trace_rate": "3", "trace_count": "2"})
        for number in range(9):
            call_http(server.http_url, "second", 0, request_id=f"{name}-{number}")
        # Every third, and no more than two.
        for number in (2, 5):
            assert attributes(receiver.request("second", isochrone__request_id=f"{name}-{number}"))["isochrone.kept"]
        shown = client.get_trace_settings("second")
        left = shown["trace_count"] if kind == "http" else shown.settings["trace_count"].value[0]
        assert left == "0"
        client.update_trace_settings("second", {"trace_level": ["OFF"], "trace_rate": None, "trace_count": None})
        call_http(server.http_url, "second", -1, request_id=f"{name}-off", traceparent=context(0xE0))
        # A model beside it is still traced.
        call_http(server.http_url, "sleeps", -1, request_id=f"{name}-on")
        receiver.request("sleeps", isochrone__request_id=f"{name}-on")
        kept = {attributes(each).get("isochrone.request_id") for each in receiver.spans}
        assert {each for each in kept if each and each.startswith(name)} == {f"{name}-2", f"{name}-5", f"{name}-on"}
    finally:
        client.update_trace_settings("second", {"trace_level": None, "trace_rate": None, "trace_count": None})
        client.close()


def metrics(server: ServerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("isochrone_trace")
    }


def test_traces_are_counted(server: ServerProcess, receiver: Receiver) -> None:
    before = metrics(server)
    call_http(server.http_url, "sleeps", -1)
    after = metrics(server)
    error = 'isochrone_trace_kept_total{reason="error"}'
    assert after[error] == before[error] + 1
    assert after["isochrone_trace_dropped_total"] == after["isochrone_trace_export_failures_total"] == 0


# A collector that is away or hangs. An export may take ten minutes: nobody waits for one.

PATIENT = ("--trace-config=opentelemetry,timeout=600000", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS")


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_collector_that_hangs(server_factory: StartServer, models: Path, protocol: str) -> None:
    with receiving(protocol, hangs=True) as hanging:
        limit = "--trace-config=opentelemetry,bsp_max_queue_size=5"
        with server_factory(models, *hanging.flags, *PATIENT, limit) as server:
            assert call_http(server.http_url, "sleeps", 0) == 200
            hanging.wait_for_call()
            for _ in range(30):
                assert call_http(server.http_url, "sleeps", 0) == 200
            assert metrics(server)["isochrone_trace_dropped_total"] == 25


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_collector_that_is_away(server_factory: StartServer, models: Path, protocol: str) -> None:
    with receiving(protocol) as gone:
        flags = gone.flags
    with server_factory(models, *flags, *PATIENT) as server:
        for _ in range(30):
            assert call_http(server.http_url, "sleeps", 0) == 200
        assert metrics(server)['isochrone_trace_kept_total{reason="share"}'] == 30
