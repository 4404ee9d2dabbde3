"""A real gateway before two real workers, and a real OTLP receiver: one trace through both, with its attempts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from traced_models import call_grpc, call_http, context, identity, write_sleeps

from gateway_process import GatewayProcess, start_gateway
from otlp_receiver import Receiver, attributes, receiving
from server_process import ServerProcess, start_server

RULES = """
defaults:
  hedge: {quantile: 0.5, least_delay_ms: 1, least_seen: 10, ratio: 1.0, busy_share: 1.0}
models:
  plain: {hedge: false}
"""
pytestmark = pytest.mark.long
ONLY_REASONS = "--trace-config=rate=0"


@pytest.fixture(scope="module", params=["http", "grpc"])
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    with receiving(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[list[ServerProcess]]:
    folder = tmp_path_factory.mktemp("workers")
    repository = folder / "models"
    write_sleeps(repository / "plain")
    write_sleeps(repository / "hedged", "instance_group { count: 2 }")
    flags = (*receiver.flags, "--trace-config=level=TIMESTAMPS", ONLY_REASONS)
    with (
        start_server(repository, *flags, log_path=folder / "first.log") as first,
        start_server(repository, *flags, log_path=folder / "second.log") as second,
    ):
        yield [first, second]


@pytest.fixture(scope="module")
def gateway(
    workers: list[ServerProcess], receiver: Receiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    rules = folder / "rules.yaml"
    rules.write_text(RULES)
    flags = (*receiver.flags, ONLY_REASONS, "--rules", str(rules))
    with start_gateway(workers, *flags, log_path=folder / "log") as made:
        yield made


def of_trace(receiver: Receiver, trace: int, spans: int) -> list[Any]:
    """The spans of a trace, once there are so many."""

    def find(all_spans: list[Any]) -> list[Any] | None:
        found = [each for each in all_spans if each.trace_id == identity(trace, 16)]
        return found if len(found) >= spans else None

    return list(receiver.wait_for(find))


def with_names(spans: list[Any], trace: int, names: set[str]) -> list[Any] | None:
    """The spans of a trace, once those of both processes are there."""
    found = [each for each in spans if each.trace_id == identity(trace, 16)]
    return found if {each.name for each in found} >= names else None


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_one_trace_through_gateway_and_worker(gateway: GatewayProcess, receiver: Receiver, transport: str) -> None:
    trace = 0xA0 + (transport == "grpc")
    headers = {"traceparent": context(trace), "tracestate": "vendor=1"}
    if transport == "http":
        assert call_http(gateway.http_url, "plain", 1, **headers) == 200
    else:
        call_grpc(gateway.grpc_url, "plain", 1, headers)
    spans = {each.name: each for each in of_trace(receiver, trace, 6)}
    whole, place, attempt = spans["gateway plain"], spans["place"], spans["attempt"]
    served = spans["infer plain"]
    assert whole.parent_span_id == identity(0xABC, 8)
    assert place.parent_span_id == attempt.parent_span_id == whole.span_id
    assert served.parent_span_id == attempt.span_id
    assert attributes(whole)["isochrone.kept"] == attributes(served)["isochrone.kept"] == "caller"
    assert attributes(attempt)["isochrone.outcome"] == "answered"
    assert served.trace_state == "vendor=1"
    assert whole.start_time_unix_nano <= attempt.start_time_unix_nano <= attempt.end_time_unix_nano
    assert place.end_time_unix_nano == attempt.start_time_unix_nano


def test_hedges_are_siblings(gateway: GatewayProcess, receiver: Receiver) -> None:
    # The delay of hedges is learned from some of them.
    for _ in range(400):
        assert call_http(gateway.http_url, "hedged", 0) == 200
    assert call_http(gateway.http_url, "hedged", 500, traceparent=context(0xB0)) == 200

    def find(all_spans: list[Any]) -> Any:
        return [each for each in all_spans if each.trace_id == identity(0xB0, 16) and each.name == "attempt"] or None

    attempts = receiver.wait_for(find)
    whole = next(
        each for each in receiver.spans if each.name == "gateway hedged" and each.trace_id == identity(0xB0, 16)
    )
    assert len(attempts) == 2
    assert {each.parent_span_id for each in attempts} == {whole.span_id}
    assert {attributes(each)["isochrone.hedge"] for each in attempts} == {False, True}
    assert {attributes(each)["isochrone.outcome"] for each in attempts} == {"answered", "cancelled"}
    assert len({attributes(each)["server.address"] for each in attempts}) == 2


def test_errors_and_misses_are_kept(gateway: GatewayProcess, receiver: Receiver) -> None:
    assert call_http(gateway.http_url, "plain", -1, traceparent=context(0xC0, is_sampled=False)) == 500
    assert call_http(gateway.http_url, "nowhere", 1, traceparent=context(0xC1, is_sampled=False)) == 404
    late = {"traceparent": context(0xC2, is_sampled=False), "x_request_timeout_ms": "30"}
    assert call_http(gateway.http_url, "plain", 300, **late) == 504
    failed = receiver.wait_for(lambda spans: with_names(spans, 0xC0, {"gateway plain", "attempt", "infer plain"}))
    (whole,) = [each for each in failed if each.name == "gateway plain"]
    assert attributes(whole)["error.type"] == "http_500"
    unknown = of_trace(receiver, 0xC1, 1)
    assert attributes(unknown[0])["isochrone.kept"] == "error"
    missed = of_trace(receiver, 0xC2, 1)
    assert (
        attributes(next(each for each in missed if each.name == "gateway plain"))["isochrone.kept"] == "deadline_miss"
    )


def test_attempts_that_failed_are_errors(receiver: Receiver, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_sleeps(repository / "plain")
    flags = (*receiver.flags, ONLY_REASONS)
    with (
        start_server(repository, log_path=tmp_path / "dies.log", check_exit=False) as dies,
        start_gateway([dies], *flags, log_path=tmp_path / "alone.log") as alone,
    ):
        dies.kill()
        call_http(alone.http_url, "plain", 1, traceparent=context(0xD0))
        spans = of_trace(receiver, 0xD0, 1)
    whole = next(each for each in spans if each.name == "gateway plain")
    assert whole.status.code == whole.status.STATUS_CODE_ERROR
    for each in spans:
        if each.name == "attempt":
            assert attributes(each)["isochrone.outcome"] not in ("answered", "cancelled")


def test_a_caller_s_context_reaches_the_worker_of_a_request_that_is_not_sampled(
    gateway: GatewayProcess, receiver: Receiver
) -> None:
    """The worker of a request that failed there alone: its trace is that of the caller, through the gateway's span."""
    headers = {"traceparent": context(0xE0, is_sampled=False)}
    assert call_http(gateway.http_url, "plain", -1, request_id="fails-unsampled", **headers) == 500
    served = receiver.request("plain", isochrone__request_id="fails-unsampled")
    assert served.parent_span_id not in (b"", identity(0xABC, 8))
    assert served.trace_id == identity(0xE0, 16)


def test_without_a_context_a_request_that_is_not_sampled_goes_on_without_one(
    gateway: GatewayProcess, receiver: Receiver
) -> None:
    assert call_http(gateway.http_url, "plain", -1, request_id="fails-alone") == 500
    assert receiver.request("plain", isochrone__request_id="fails-alone").parent_span_id == b""


def test_every_request_is_sent_with_a_context_where_that_is_asked_for(
    workers: list[ServerProcess], receiver: Receiver, tmp_path: Path
) -> None:
    flags = (*receiver.flags, ONLY_REASONS, "--trace-config=context=all")
    with start_gateway(workers, *flags, log_path=tmp_path / "all.log") as gateway:
        assert call_http(gateway.http_url, "plain", -1, request_id="fails-connected") == 500
        served = receiver.request("plain", isochrone__request_id="fails-connected")
        spans = receiver.wait_for(
            lambda found: [each for each in found if each.span_id == served.parent_span_id] or None
        )
    assert [each.name for each in spans] == ["attempt"]
    assert spans[0].trace_id == served.trace_id
