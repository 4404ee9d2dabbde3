"""Load reports as the gateway reads them: the short ways must say what the long ways say."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import IsochroneError, MalformedRequest
from isochrone.gateway.replicas import Endpoint, EndpointReport, LoadReport, Replica
from isochrone.gateway.upstream.load_reports import (
    pending_requests,
    relayed,
    relayed_message,
    report_of,
    report_of_header,
    report_of_message,
)
from isochrone.protocol.headers import orca
from isochrone.protocol.headers.divisions import division_metric

NAMES = (
    "mem_utilization",
    "named_metrics.free_memory_bytes",
    "named_metrics.queue_depth",
    "named_metrics.in_flight",
    "named_metrics.estimated_wait_us",
    "named_metrics.estimated_run_us",
    "named_metrics.least_run_us",
    "named_metrics.draining",
    "named_metrics.inter_token_us",
    "named_metrics.least_wait_us",
)
AMOUNTS = st.floats(0, 1e9, allow_nan=False)
REPORTS = st.fixed_dictionaries(dict.fromkeys(NAMES, AMOUNTS))


@given(st.lists(REPORTS, min_size=1, max_size=4), st.permutations(NAMES))
def test_all_forms_say_the_same(reports: list[dict[str, float]], order: list[str]) -> None:
    for report in reports:
        ordered = {name: report[name] for name in order}
        message = orca.orca_binary(ordered)
        expected = report_of(orca.parse_orca_binary(message))
        # Twice: the second one goes by the layout of the first.
        assert report_of_message(message) == expected
        assert report_of_message(message) == expected
        for text in (orca.orca_text(ordered), orca.orca_json(ordered)):
            assert report_of_header(text) == pytest.approx(expected)


def test_what_is_not_told_is_not_known() -> None:
    assert report_of_header(b"TEXT cpu_utilization=0.5") == LoadReport(0, 0)
    assert report_of_message(orca.orca_binary({"cpu_utilization": 0.5})) == LoadReport(0, 0)


def test_another_message_of_the_same_length() -> None:
    first = orca.orca_binary({"named_metrics.in_flight": 3.0, "named_metrics.other_one": 7.0})
    second = orca.orca_binary({"named_metrics.other_one": 7.0, "named_metrics.in_flight": 3.0})
    assert len(first) == len(second)
    assert report_of_message(first).in_flight == report_of_message(second).in_flight == 3


@given(st.binary(max_size=80))
def test_any_bytes_are_a_report_or_a_clear_error(data: bytes) -> None:
    for read in (report_of_header, report_of_message):
        with suppress(IsochroneError):
            assert isinstance(read(data), LoadReport)


def test_absurd_numbers_are_bounded() -> None:
    for number in (float("inf"), float("nan"), -5.0, 1e300):
        report = report_of({"in_flight": number, "estimated_wait_us": number, "free_memory_bytes": number})
        assert report.in_flight >= 0
        assert report.wait_ns >= 0


def test_numbers_that_are_none() -> None:
    with pytest.raises(IsochroneError, match="expected numbers"):
        report_of_header(b"TEXT named_metrics.in_flight=--")


def test_a_worker_that_drains_does_not_make_its_gateway_drain() -> None:
    told = {"named_metrics.in_flight": 3.0, "named_metrics.draining": 1.0, "named_metrics.free_memory_bytes": 9.0}
    for stopping in (False, True):
        for text in (orca.orca_text(told), orca.orca_json(told)):
            report = report_of_header(relayed(text, stopping))
            assert (report.in_flight, report.draining, report.free_memory) == (3, stopping, -1)
        report = report_of_message(relayed_message(orca.orca_binary(told), stopping))
        assert (report.in_flight, report.draining, report.free_memory) == (3, stopping, -1)


def test_a_triton_page_of_metrics() -> None:
    page = (
        b"# HELP nv_inference_pending_request_count Instantaneous number of pending requests\n"
        b'nv_inference_pending_request_count{model="a",version="1"} 3\n'
        b'nv_inference_pending_request_count{model="a",version="2"} 4\n'
        b'nv_inference_pending_request_count{model="b",version="1"} 0\n'
        b'nv_inference_count{model="a",version="1"} 99\n'
    )
    assert pending_requests(page) == {"a": 7, "b": 0}


def test_the_figures_of_a_divided_model() -> None:
    figures = {"in_flight": 1.0, **{division_metric(kind): ms * 1000.0 for kind, ms in (("edge", 9), ("core", 30))}}
    for report in (report_of_header(orca.orca_text(figures)), report_of_header(orca.orca_json(figures))):
        assert report.divisions == (9_000_000, 0, 30_000_000)
    assert report_of_message(orca.orca_binary(figures)).divisions == (9_000_000, 0, 30_000_000)
    assert report_of_message(orca.orca_binary({"in_flight": 1.0})).divisions is None


@pytest.mark.parametrize("value", [b"nan", b"-5", b"1e400", b"0"])
def test_a_figure_of_a_division_that_makes_no_sense_is_none_or_bounded(value: bytes) -> None:
    try:
        found = report_of_header(b"TEXT named_metrics.division_edge_us=" + value).divisions
    except MalformedRequest:
        return
    assert found is None or 0 <= found[0] < 2**63


def test_a_probe_brings_no_figures_of_another_model() -> None:
    replica = Replica(Endpoint("a"))
    probed = EndpointReport(replica.endpoint, LoadReport(1, 0, divisions=(1, 2, 3)), 10)
    assert probed.of(replica).divisions is None
    replica.reported(LoadReport(1, 0, divisions=(4, 5, 6)), 5)
    assert probed.of(replica).divisions == (4, 5, 6)
    replica.reported(LoadReport(1, 0, 0, 7, divisions=(4, 5, 6)), 5)
    assert probed.of(replica) == LoadReport(1, 0, 0, 7, divisions=(4, 5, 6))
