"""Values of headers and metadata: load reports, deadlines, traces, stages, divisions, pins, addresses and paths."""

from __future__ import annotations

import math
from collections.abc import Callable

from fuzz.target import Target, outcome
from isochrone.gateway.upstream.load_reports import pending_requests, relayed, relayed_message, report_of_header
from isochrone.gateway.upstream.load_reports import report_of_message as gateway_report
from isochrone.observe.tracing.trace_parent import parse_trace_parent, says_sampled, write_trace_parent
from isochrone.protocol.grpc.calls import parse_timeout
from isochrone.protocol.headers.divisions import parse_division, read_division
from isochrone.protocol.headers.orca import orca_binary, orca_json, orca_text, parse_orca_binary, parse_orca_header
from isochrone.protocol.headers.request_fields import caller_ids, request_fields
from isochrone.protocol.headers.stages import parse_stages, stages_value
from isochrone.protocol.headers.timing import parse_server_timing, step_of
from isochrone.protocol.headers.trace_context import trace_context_in
from isochrone.protocol.headers.version_pins import pin_of, pinned_authority
from isochrone.protocol.openai.paths import find_path
from isochrone.protocol.rest.headers import timeout_header
from isochrone.wire.exchange import Head


def load_reports(data: bytes) -> None:
    for read, write in (
        (parse_orca_header, lambda report: parse_orca_header(orca_json(report))),
        (parse_orca_binary, lambda report: parse_orca_binary(orca_binary(report))),
        (parse_orca_header, lambda report: parse_orca_header(orca_text(report)) if _is_plain(report) else report),
    ):
        ok, report = outcome(read, data)
        if ok:
            assert all(math.isfinite(value) for value in report.values())
            assert write(report) == report, "written again, it is another report"
    for relay in (report_of_header, gateway_report, pending_requests):
        assert outcome(relay, data) == outcome(relay, data)
    for draining in (False, True):
        outcome(relayed, data, draining)
        outcome(relayed_message, data, draining)


def _is_plain(report: dict[str, float]) -> bool:
    """Whether the text form has a place for its names."""
    return all(name and not set(name) & set(" ,=") and name.isprintable() and name.isascii() for name in report)


def _head(name: bytes) -> Callable[[bytes], Head]:
    return lambda value: Head(b"POST", b"/v2", ((name, value),))


def values(data: bytes) -> None:
    """One value, as every header that a stranger sends."""
    timeout = outcome(lambda: timeout_header(_head(b"x-request-timeout-ms")(data)))
    assert not timeout[0] or 0 <= timeout[1] < 10**15
    deadline = outcome(parse_timeout, data)
    assert not deadline[0] or 0 < deadline[1] < 10**8 * 3600 * 10**9
    text = data.decode("latin-1")
    parent = parse_trace_parent(text)
    if parent is not None:
        assert parse_trace_parent(write_trace_parent(*parent)) == parent
    assert not says_sampled(text) or (parent is not None and parent.is_sampled)
    context = trace_context_in(((b"traceparent", data), (b"tracestate", data), (b"baggage", data)))
    assert context is None or all(value.isascii() and value.isprintable() for value in context.values())
    assert all(math.isfinite(duration) and duration >= 0 for duration in parse_server_timing(data).values())
    step_of(text)
    ok, stages = outcome(parse_stages, data)
    if ok:
        assert parse_stages(stages_value(stages)) == stages
    parse_division(read_division(data))
    for name in (b"traceparent", b"x-request-id", b"x-isochrone-stages", b"x-isochrone-division"):
        outcome(request_fields, _head(name)(data))
        caller_ids(_head(name)(data))
    ok, pin = outcome(pin_of, data)
    if ok:
        model, version, stages = pin
        again = pin_of(pinned_authority(model, version, stages_value(stages) if stages else b"").encode())
        assert again == (model, version, stages or None) or stages == {}
    outcome(find_path, Head(b"POST", data, ()))


_PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

TARGETS = (
    Target(
        "load_reports",
        ("isochrone.protocol.headers.orca", "isochrone.gateway.upstream.load_reports"),
        "finite numbers; what is written again reads the same; the memo of layouts changes nothing; only our errors",
        load_reports,
        (
            orca_json({"cpu_utilization": 0.5, "in_flight": 3.0, "named_metrics.queue": 2.0}),
            orca_text({"cpu_utilization": 0.5, "named_metrics.wait_us": 1e6, "request_cost.tokens": 2.0}),
            b"BIN CQAAAAAAAOA/",
            orca_binary({"cpu_utilization": 0.5, "rps_fractional": 100.0, "in_flight": 1.0, "utilization.gpu": 0.25}),
            b'JSON {"named_metrics":{"in_flight":2,"cpu_utilization":1},"mem_utilization":1e999}',
        ),
    ),
    Target(
        "header_values",
        (
            "isochrone.protocol.headers.timing",
            "isochrone.protocol.headers.trace_context",
            "isochrone.observe.tracing.trace_parent",
            "isochrone.protocol.headers.stages",
            "isochrone.protocol.headers.version_pins",
            "isochrone.protocol.headers.request_fields",
            "isochrone.protocol.rest.headers",
            "isochrone.protocol.grpc.calls",
            "isochrone.protocol.openai.paths",
        ),
        "deadlines in their range; finite durations; trace contexts that can be sent on; what is written again reads "
        "the same; only our errors",
        values,
        (
            _PARENT,
            b"cc-" + _PARENT[3:] + b"-more",
            b'queue;dur=1.5, compute;desc="a, \\"b\\"";dur=2, step_detector;dur=.5',
            b"preprocess=2,detector=2,a%2Fb=17",
            b"prefer split",
            b"10m",
            b"250.5",
            pinned_authority("a/b", "3", b"x=1,y=2").encode(),
            b"/v1/chat/completions?x=1",
            b"/openai/v1/models/a%2Fb",
        ),
    ),
)
