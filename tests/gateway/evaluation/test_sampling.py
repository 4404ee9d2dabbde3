"""Sampling live requests: an even chance for each, bounds that hold, and an end when nobody asks; and the two pages."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import SECOND
from isochrone.gateway.control_calls.evaluation_pages import EvaluationPages
from isochrone.gateway.evaluation.counts import EvaluationCounts, EvaluationReport
from isochrone.gateway.evaluation.sampling import GRPC, GRPC_PATH, HTTP, SampleReport, Samples, Sampling
from isochrone.wire.exchange import Buffer, Exchange, Head, Headers, Owner

HEADERS: Headers = (
    (b"host", b"gateway"),
    (b"content-type", b"application/json"),
    (b"inference-header-content-length", b"7"),
    (b"authorization", b"Bearer secret"),
)


class Answer:
    """An exchange that keeps what it is answered with."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.body: Buffer = b""
        self.arrived = 0
        self.owner: Owner | None = None
        self.on_writable: Callable[[], None] | None = None
        self.is_congested = False
        self.status = 0
        self.content = b""

    def respond(self, status: int, headers: Headers, body: Sequence[Buffer]) -> None:
        assert (b"content-type", b"application/json") in headers
        self.status, self.content = status, b"".join(body)

    def start(self, status: int, headers: Headers) -> None:
        raise AssertionError("answered in pieces")

    def write(self, body: Sequence[Buffer]) -> None:
        raise AssertionError("answered in pieces")

    def end(self) -> None:
        raise AssertionError("answered in pieces")

    def abort(self) -> None:
        raise AssertionError("broken off")


def get(pages: EvaluationPages, target: bytes, method: bytes = b"GET", token: bytes = b"secret") -> tuple[int, Any]:
    head = Head(method, target, ((b"x-isochrone-control", token),))
    route = pages.route(head)
    assert route is not None
    exchange = Answer(head)
    answered: Exchange = exchange
    route.handle(answered)
    return exchange.status, json.loads(exchange.content)


def test_every_request_is_as_likely_to_be_kept_whenever_it_came() -> None:
    kept = [0] * 200
    for seed in range(400):
        samples = Samples(limit=10, random=Random(seed))
        for number in range(200):
            samples.offer(HTTP, b"/infer", HEADERS, b"%d" % number)
        report = samples.report()
        assert (report.seen, len(report.samples)) == (200, 10)
        for sample in report.samples:
            kept[int(sample.body)] += 1
    # 4,000 in all, 500 expected in each quarter-and-eighth: five standard deviations are 105.
    for eighth in range(8):
        assert 395 < sum(kept[eighth * 25 : eighth * 25 + 25]) < 605


@given(st.lists(st.integers(0, 400), max_size=80), st.integers(0, 1000))
def test_neither_number_nor_bytes_ever_exceed_their_bounds(sizes: list[int], seed: int) -> None:
    samples = Samples(limit=5, max_bytes=1000, random=Random(seed))
    for size in sizes:
        samples.offer(HTTP, b"/infer", (), bytes(size))
        kept = samples.report().samples
        assert len(kept) <= 5
        assert sum(len(sample.body) for sample in kept) <= 1000
        assert all(len(sample.body) <= 250 for sample in kept)
    if any(size <= 250 for size in sizes):
        assert samples.report().samples


def test_a_body_is_copied_and_only_headers_that_are_needed_are_kept() -> None:
    samples = Samples(random=Random(1))
    body = bytearray(b"\0\0\0\0\3abc")
    samples.offer(GRPC, GRPC_PATH, HEADERS, body, start=5)
    samples.offer(HTTP, b"/infer?x=1", HEADERS, memoryview(body)[5:])
    body[5:] = b"xyz"
    by_protocol = {sample.protocol: sample for sample in samples.report().samples}
    assert by_protocol[GRPC].body == by_protocol[HTTP].body == b"abc"
    assert by_protocol[GRPC].headers == {}
    assert by_protocol[HTTP].headers == {"content-type": "application/json", "inference-header-content-length": "7"}
    assert by_protocol[HTTP].path == "/infer?x=1"


def test_only_plain_inference_is_sampled() -> None:
    samples = Samples(random=Random(1))
    samples.offer(HTTP, b"/generate_stream", HEADERS, b"{}")
    samples.offer(HTTP, b"/generate", HEADERS, b"{}")
    samples.offer(GRPC, b"/inference.GRPCInferenceService/ModelMetadata", HEADERS, b"")
    assert samples.report() == SampleReport("", 0, 0, ())
    # Its answer goes into the caller's memory: replayed, it would be overwritten.
    samples.offer(HTTP, b"/infer", HEADERS, b'{"parameters": {"shared_memory_region": "mine"}}')
    assert samples.report().samples == ()


def test_sampling_is_on_while_it_is_asked_for() -> None:
    sampling = Sampling(Random(1))
    assert not sampling.on
    assert sampling.ask("m", 0).seen == 0
    sampling.on["m"].offer(HTTP, b"/infer", HEADERS, b"one")
    sampling.sweep(9 * SECOND)
    assert sampling.ask("m", 9 * SECOND).seen == 1
    sampling.sweep(18 * SECOND)
    assert "m" in sampling.on
    sampling.sweep(19 * SECOND)
    assert not sampling.on
    assert sampling.ask("m", 19 * SECOND).seen == 0


def test_no_more_than_sixteen_models_are_sampled_at_once() -> None:
    sampling = Sampling()
    for number in range(20):
        assert sampling.ask(f"m{number}", 0) == SampleReport(f"m{number}", 0, 0, ())
    assert len(sampling.on) == 16


def test_the_pages_tell_trials_and_samples() -> None:
    counts = EvaluationCounts("1", "2", identity="t")
    counts.ended("2", 40, False)
    samples = Samples(random=Random(1))
    samples.offer(HTTP, b"/infer", HEADERS, b"\xff\0")
    asked: list[str] = []

    def sample(model: str) -> SampleReport | None:
        asked.append(model)
        return samples.report(model) if model == "a/b" else None

    pages = EvaluationPages(lambda: {"m": counts.report()}, sample, lambda: "secret")
    status, told = get(pages, b"/evaluations?x")
    assert status == 200
    assert msgspec.convert(told, dict[str, EvaluationReport], strict=False) == {"m": counts.report()}
    assert told["m"]["versions"]["2"] == {"requests": 1, "failures": 0, "histogram": [[40, 1]]}
    status, told = get(pages, b"/samples/a%2Fb")
    assert (status, told["samples"][0]["body"]) == (200, b64encode(b"\xff\0").decode())
    assert msgspec.json.decode(json.dumps(told), type=SampleReport) == samples.report("a/b")
    assert get(pages, b"/samples/nobody")[0] == 404
    assert asked == ["a/b", "nobody"]
    assert get(pages, b"/evaluations", b"POST")[0] == 405
    assert pages.route(Head(b"GET", b"/metrics", ())) is None


def test_samples_are_for_the_fleets_controller_alone() -> None:
    asked: list[str] = []
    for token, sent in (("secret", b"guess"), ("secret", b""), ("", b""), ("", b"secret")):
        pages = EvaluationPages(dict, asked.append, lambda token=token: token)  # type: ignore[arg-type]
        status, told = get(pages, b"/samples/m", token=sent)
        assert status == 403
        assert "controller" in told["error"]
    # Nobody's question has switched sampling on.
    assert asked == []
