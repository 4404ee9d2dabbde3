"""One connected trace in a real OTLP receiver: a gateway, a hedge, two stages on the worker that answered, a batch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from traced_models import call_http, context, identity, write_batched, write_ensemble, write_sleeps

from gateway_process import start_gateway
from otlp_receiver import Receiver, attributes, receiving
from server_process import ServerProcess, start_server

pytestmark = pytest.mark.long
RULES = "defaults:\n  hedge: {quantile: 0.5, least_delay_ms: 1, least_seen: 10, ratio: 1.0, busy_share: 1.0}\n"
#: A request is sent again under another number until it was hedged: that is a decision by time.
TRACE, TRIALS, MATES = 0xD0, 20, 0xF00
STAGE_MS = 150


def write_models(repository: Path) -> None:
    """The second stage runs two requests together, never one."""
    write_sleeps(repository / "first", "instance_group { count: 2 }")
    write_batched(repository / "second", 2)
    write_ensemble(repository / "chain", "first", "second")


@contextlib.contextmanager
def mates(workers: list[ServerProcess]) -> Iterator[None]:
    """At each worker, a request always waits for another one to run with."""
    ended = threading.Event()

    def call(number: int) -> None:
        while not ended.is_set():
            call_http(workers[number].http_url, "second", 1, 1, traceparent=context(MATES + number))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(workers))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for worker in workers:
            # The last one is released.
            call_http(worker.http_url, "second", 1, 1)
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_trace_through_gateway_hedge_stages_and_batch(tmp_path: Path, protocol: str) -> None:
    write_models(tmp_path / "models")
    (tmp_path / "rules.yaml").write_text(RULES)
    with receiving(protocol) as receiver:
        flags = (*receiver.flags, "--trace-config=rate=0")
        on = (*flags, "--trace-config=level=TIMESTAMPS")
        with (
            start_server(tmp_path / "models", *on, log_path=tmp_path / "one.log") as one,
            start_server(tmp_path / "models", *on, log_path=tmp_path / "two.log") as two,
            start_gateway(
                [one, two], *flags, "--rules", str(tmp_path / "rules.yaml"), log_path=tmp_path / "log"
            ) as gateway,
            mates([one, two]),
        ):
            # The delay of hedges is learned from some requests.
            for _ in range(100):
                assert call_http(gateway.http_url, "chain", 0) == 200
            for trace in range(TRACE, TRACE + TRIALS):
                assert call_http(gateway.http_url, "chain", STAGE_MS, traceparent=context(trace)) == 200
                spans = whole_trace(receiver, trace)
                if [span.name for span in spans].count("attempt") == 2:
                    break
            check(receiver, spans)


def whole_trace(receiver: Receiver, trace: int) -> list[Any]:
    """The spans of a request, once those of the gateway and of the worker that answered are there."""

    def find(every: list[Any]) -> list[Any] | None:
        spans = [span for span in every if span.trace_id == identity(trace, 16)]
        answered = [span.span_id for span in spans if attributes(span).get("isochrone.outcome") == "answered"]
        # A process exports all spans of a request at once.
        return spans if answered and any(span.parent_span_id == answered[0] for span in spans) else None

    return list(receiver.wait_for(find))


def check(receiver: Receiver, spans: list[Any]) -> None:
    (whole,) = [span for span in spans if span.name == "gateway chain"]
    attempts = [span for span in spans if span.name == "attempt"]
    assert whole.parent_span_id == identity(0xABC, 8)
    assert {span.parent_span_id for span in attempts} == {whole.span_id}
    assert {attributes(span)["isochrone.hedge"] for span in attempts} == {False, True}
    (answered,) = [span for span in attempts if attributes(span)["isochrone.outcome"] == "answered"]
    (chain,) = [span for span in spans if span.name == "infer chain" and span.parent_span_id == answered.span_id]
    stages = {span.name: span for span in spans if span.parent_span_id == chain.span_id}
    assert {"infer first", "infer second"} <= {*stages}
    first, second = stages["infer first"], stages["infer second"]
    assert first.end_time_unix_nano - first.start_time_unix_nano >= STAGE_MS * 1_000_000
    assert first.end_time_unix_nano <= second.end_time_unix_nano
    (batch,) = [span for span in spans if span.name == "batch" and span.parent_span_id == second.span_id]
    assert attributes(batch)["isochrone.batch.requests"] == 2
    (link,) = batch.links
    (mate,) = receiver.wait_for(lambda every: [span for span in every if span.span_id == link.span_id])
    assert mate.trace_id in (identity(MATES, 16), identity(MATES + 1, 16))
    assert mate.name == "infer second"
    # Every span hangs on another one of the trace, or on the caller's.
    known = {span.span_id for span in spans}
    assert {span.parent_span_id for span in spans} <= known | {identity(0xABC, 8)}
