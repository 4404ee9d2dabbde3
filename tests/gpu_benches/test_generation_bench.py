"""The pure parts of the generation bench: what streams say, how answers are read, lengths, metrics, tables."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.gpu.generation.parts import DEADLINES, THROUGHPUT
from bench.gpu.generation.report import report
from bench.gpu.generation.repository import read_metrics
from bench.gpu.generation.stream_figures import (
    Streams,
    first_milliseconds,
    grace_seconds,
    milliseconds,
    overload_figures,
    refusals_problem,
)
from bench.gpu.generation.streams import CUT, DROPPED, LOST, Stream, StreamConnection
from bench.gpu.generation.workload import Flow, Lengths, Request
from isochrone.errors import DeadlineExceeded, InvalidArgument, IsochroneError, ModelFailed
from isochrone.protocol.messages import Plan
from isochrone.protocol.rest.answers import respond_error
from isochrone.protocol.rest.generate import GenerateInferRequest
from isochrone.wire.exchange import Headers
from isochrone.worker.backends.generative import GenerationLimits
from isochrone.worker.generation.requests.sampling import GenerationParameters
from isochrone.worker.generation.scheduling.admission import Candidate, EngineLoad, Level, refusal
from isochrone.worker.generation.scheduling.scheduler import late_error
from isochrone.worker.generation.scheduling.sequence import TokenSequence
from isochrone.worker.generation.scheduling.step_times import StepCosts

MS = 1_000_000
EVENT = b'data: {"id":"1","text_output":"a","num_output_tokens":%d}\n\n'


def stream(
    sent_ms: float,
    times_ms: list[float],
    status: int = 200,
    tokens: list[int] | None = None,
    ended_ms: float | None = None,
) -> Stream:
    made = Stream(0, sum(tokens or [1] * len(times_ms)), round(sent_ms * MS))
    made.sent, made.status = made.due, status
    made.ended = round((max([sent_ms, *times_ms]) if ended_ms is None else ended_ms) * MS)
    made.times.extend(round(at * MS) for at in times_ms)
    made.tokens.extend(tokens or [1] * len(times_ms))
    return made


def streams(*given: Stream) -> Streams:
    return Streams.joined([Streams.of(given)], 0)


def test_times_of_tokens() -> None:
    found = streams(stream(0, [10, 12, 18], tokens=[1, 2, 1]), stream(5, []), stream(5, [9, 10]))
    assert found.first_token_ns().tolist() == [10 * MS, 4 * MS]
    # Two tokens in one event share the time before it; the first of a stream has none.
    assert sorted(found.gaps_ns()) == [MS, MS, MS, 6 * MS]
    assert found.tokens_per_second(0.009, 0.0125) == pytest.approx(5 / 0.0035)
    assert found.received.tolist() == [4, 0, 2]
    assert sorted(found.sent_between(0.004, 1).gaps_ns()) == [MS]


def test_deadlines_are_kept_by_whole_streams_and_by_tokens() -> None:
    found = streams(
        stream(0, [5, 7, 9]),
        stream(0, [15, 17]),
        stream(0, [5, 17]),
        stream(0, [], status=504),
        stream(0, [], status=DROPPED),
        stream(0, [5], status=CUT),
    )
    assert found.kept(10 * MS, 3 * MS).tolist() == [True, False, False, False, False, False]
    figures = overload_figures(found, 10, 3, 1.0)
    assert (figures["admitted"], figures["refused_share"], figures["dropped"]) == (5, 1 / 6, 1)
    assert figures["kept_share_of_admitted"] == pytest.approx(1 / 4)
    assert figures["late_share"] == pytest.approx(2 / 8)
    assert figures["goodput_tokens_per_second"] == 6
    assert figures["kept_requests_tokens_per_second"] == 3
    assert not found.failed.any()
    assert overload_figures(streams(), 10, 3, 1.0)["kept_share_of_admitted"] is None


def test_streams_that_the_bench_cut_count_only_where_they_have_missed_a_deadline() -> None:
    found = overload_figures(
        streams(
            stream(0, [5, 7]),
            stream(0, [5, 7], status=CUT, ended_ms=9),  # the next token is not overdue
            stream(0, [], status=CUT, ended_ms=10),
            stream(0, [5, 7], status=CUT, ended_ms=11),
            stream(0, [5, 9, 10], status=CUT, ended_ms=10),
            stream(0, [], status=CUT, ended_ms=11),
        ),
        *(10, 3, 1.0),
    )
    assert (found["admitted"], found["cut"], found["unfinished"]) == (6, 5, 2)
    assert found["kept_share_of_admitted"] == pytest.approx(1 / 4)
    nothing = overload_figures(streams(stream(0, [], status=CUT, ended_ms=1)), 10, 3, 1.0)
    assert (nothing["kept_share_of_admitted"], nothing["late_share"]) == (None, None)


def test_rates_are_of_the_tokens_that_came_while_requests_arrived() -> None:
    found = streams(stream(0, [5, 7, 9, 11]), stream(0, [5, 9, 12]))
    figures = overload_figures(found, 10, 3, 0.010)
    assert figures["tokens_per_second"] == pytest.approx(5 / 0.010)
    assert figures["goodput_tokens_per_second"] == pytest.approx(4 / 0.010)
    assert figures["kept_requests_tokens_per_second"] == pytest.approx(3 / 0.010)
    # The share is of all of them.
    assert figures["late_share"] == pytest.approx(1 / 7)


def test_the_grace_is_enough_for_the_longest_answer_that_keeps_its_deadlines() -> None:
    assert grace_seconds(3.0, 400, 20, 256) == pytest.approx(0.4 + 256 * 0.020 + 0.5)
    assert grace_seconds(9.0, 400, 20, 256) == 9.0


def test_the_wait_for_a_first_token_is_not_that_of_the_quick_alone() -> None:
    """Every tenth first token takes 400 ms, the others 10; all are cut after one second."""
    given = [(sent, 400 if not sent % 100 else 10) for sent in range(0, 1000, 10)]
    found = streams(
        *(
            stream(sent, [sent + wait] if sent + wait < 1000 else [], 200 if sent + wait < 1000 else CUT, ended_ms=1000)
            for sent, wait in given
        )
    )
    waits, waiting = found.first_waits(0.0, 1.0)
    # Those sent in the last 400 ms are left out, of which all slow ones were cut.
    assert (len(waits), waiting) == (60, 0)
    assert (waits == 400 * MS).sum() == 6
    assert (found.first_token_ns() == 400 * MS).sum() / len(found.first_token_ns()) < 0.07


def test_a_stream_without_a_token_counts_with_the_time_that_it_has_waited() -> None:
    found = streams(
        stream(0, [10], ended_ms=20),
        stream(100, [], CUT, ended_ms=1000),
        stream(200, [], 504, ended_ms=201),
        stream(995, [], CUT, ended_ms=1000),
    )
    assert first_milliseconds(found, 0.0, 1.0, "first") == {
        **milliseconds(np.array([10 * MS, 900 * MS]), "first"),
        "first_waiting": 1,
    }
    assert overload_figures(found, 10, 3, 1.0)["first_waiting"] == 2
    assert first_milliseconds(streams(), 0.0, 1.0) == {}


def test_gaps_have_their_tail() -> None:
    found = milliseconds(np.arange(0, 1001) * MS, "between")
    assert found == pytest.approx(
        {"between_p50_ms": 500, "between_p99_ms": 990, "between_p999_ms": 999, "between_max_ms": 1000}
    )


def test_the_report_shows_the_streams_in_flight() -> None:
    figure = {"part": THROUGHPUT, "cell": f"{THROUGHPUT}/static/32", "rows": 32, "streams": 64, "problem": ""}
    assert "| throughput/static/32 | 64 |" in report([figure])[0]


def test_the_report_shows_where_tokens_are_late() -> None:
    figure = {"part": DEADLINES, "cell": f"{DEADLINES}/with/1", "problem": ""}
    text, _ = report([{**figure, "late_share": 0.02, "server_late_share": 0.00015, "unfinished": 3}])
    heading, _, row = (line.split(" | ") for line in text.splitlines()[:3])
    shown = dict(zip(heading, row, strict=True))
    assert (shown["late at the client"], shown["late in the engine"], shown["unfinished"]) == ("2.000%", "0.015%", "3")


def test_an_answer_of_another_length_fails() -> None:
    short = stream(0, [1, 2])
    short.wanted = 3
    found = streams(short, stream(0, [], status=LOST))
    assert found.failed.tolist() == [True, True]
    assert "2 of 2 failed" in found.problem()


class Sink:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass


def answered(answer: bytes, pieces: int) -> Stream:
    connection: Any = StreamConnection("host:1", "/path")
    connection.connection_made(Sink())
    ended: list[Stream] = []
    connection.send(Request(b"{}", 3), Stream(0, 3, 0), ended.append)
    for part in np.array_split(np.frombuffer(answer, np.uint8), pieces):
        connection.data_received(part.tobytes())
    (found,) = ended
    return found


def chunked(*events: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in events) + b"0\r\n\r\n"


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 50, 120])
def test_events_are_counted_wherever_the_bytes_are_split(pieces: int) -> None:
    found = answered(chunked(EVENT % 1, EVENT % 2, EVENT % 1), pieces)
    assert (found.status, list(found.tokens), len(found.times)) == (200, [1, 2, 1], 3)


class Wire:
    """An exchange that keeps the bytes of its answer."""

    arrived = 0
    owner: Any = None

    def __init__(self) -> None:
        self.sent = b""

    def respond(self, status: int, headers: Headers, body: list[bytes]) -> None:
        data = b"".join(body)
        self._head(status, (*headers, (b"content-length", b"%d" % len(data))))
        self.sent += data

    def start(self, status: int, headers: Headers) -> None:
        self._head(status, (*headers, (b"transfer-encoding", b"chunked")))

    def write(self, parts: list[bytes]) -> None:
        self.sent += b"%x\r\n%s\r\n" % (sum(map(len, parts)), b"".join(parts))

    def end(self) -> None:
        self.sent += b"0\r\n\r\n"

    def _head(self, status: int, headers: Headers) -> None:
        fields = b"".join(b"%s: %s\r\n" % field for field in headers)
        self.sent += b"HTTP/1.1 %d x\r\n%s\r\n" % (status, fields)


def at_once(error: IsochroneError) -> bytes:
    """The answer to a request that no engine has seen."""
    wire: Any = Wire()
    respond_error(wire, error)
    return bytes(wire.sent)


def by_the_engine(error: IsochroneError, tokens: int = 0) -> bytes:
    """The answer to a request that an engine has refused or ended."""
    wire: Any = Wire()
    route: Any = SimpleNamespace(extras=tuple)
    request = GenerateInferRequest(wire, route, Plan("writer", "", (), None, {}), "1", {}, True)
    request.served_by = SimpleNamespace(model_version="1")
    for _ in range(tokens):
        request.emit(
            {"num_output_tokens": np.array([1]), "text_output": np.array([b"its deadline passed"], np.object_)}
        )
    request.fail(error)
    return bytes(wire.sent)


def refused(reason: str) -> IsochroneError:
    """An error of admission."""
    load = EngineLoad(
        GenerationLimits(context_tokens=1000, block_tokens=4, blocks=10_000, rows=4, prefill_tokens=64),
        StepCosts(fixed=10.0 * MS),
        waiting=5,
        levels=(Level(1, 1, 10, 0),),
    )
    candidate = Candidate(8, 1, 0, MS if reason == "first" else 1000 * MS, 5 * MS if reason == "between" else 0)
    error = refusal(load, candidate, 0, 5 if reason == "queue" else 100)
    assert error is not None
    return error


def late(started: bool = False, tokens: int = 0) -> DeadlineExceeded:
    """The error of an admitted sequence."""
    sequence = TokenSequence([1, 2], GenerationParameters(first_token_ns=10 * MS), deadline=10 * MS)
    sequence.started_at, sequence.first_at = int(started), MS if tokens else 0
    sequence.tokens += [3] * tokens
    return late_error(sequence, 13 * MS)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (at_once(refused("queue")), 429),
        (at_once(refused("first")), 504),
        (at_once(refused("between")), 504),
        (by_the_engine(refused("queue")), 429),
        (by_the_engine(refused("first")), 504),
        (by_the_engine(refused("between")), 504),
        (by_the_engine(late()), DROPPED),
        (by_the_engine(late(started=True)), DROPPED),
        (by_the_engine(late(started=True, tokens=2), tokens=2), DROPPED),
        (at_once(refused("first").begun()), DROPPED),
        (by_the_engine(ModelFailed("a step failed")), 500),
        (by_the_engine(ModelFailed("a step failed"), tokens=1), 500),
        (at_once(InvalidArgument("no prompt")), 400),
    ],
)
@pytest.mark.parametrize("pieces", [1, 9])
def test_refused_dropped_and_failed_answers(answer: bytes, status: int, pieces: int) -> None:
    assert answered(answer, pieces).status == status


def test_refusals_are_compared_with_the_count_of_the_worker() -> None:
    found = streams(stream(0, [], status=504), stream(0, [5], status=CUT), stream(0, [5]))
    assert refusals_problem(found, 1) == refusals_problem(found, 2) == ""
    assert refusals_problem(found, 0) == "1 requests were refused by their answers, 0 by the worker's count"
    assert refusals_problem(found, 3)


def test_lengths_and_shares() -> None:
    source = random.Random(1)
    drawn = [Lengths(16, 512).draw(source) for _ in range(4000)]
    assert (min(drawn) >= 16, max(drawn) <= 512) == (True, True)
    # Each doubling is as frequent as the next.
    assert np.histogram(drawn, [16, 32, 64, 128, 256, 513])[0] == pytest.approx([800] * 5, rel=0.15)
    flow = Flow("chat", Lengths(1, 1), Lengths(1, 1), 10, 90.0)
    shares = [flow.share(number, 3) for number in range(3)]
    assert ([each.streams for each in shares], shares[0].rate) == ([4, 3, 3], 30.0)
    few = Flow("long", Lengths(1, 1), Lengths(1, 1), 0, 2.0)
    assert [few.share(number, 3).rate for number in range(3)] == [2.0, 0.0, 0.0]


def test_metrics_by_name() -> None:
    page = (
        "# TYPE isochrone_generation_steps counter\n"
        'isochrone_generation_steps_total{model="a",version="1"} 12.0\n'
        'isochrone_generation_blocks_in_use{model="a",version="1"} 3.0\n'
        'isochrone_generation_refusals_total{code="deadline_exceeded",model="a",version="1"} 4.0\n'
        'isochrone_generation_refusals_total{code="queue_full",model="a",version="1"} 1.0\n'
        'isochrone_generation_inter_token_seconds_count{model="a",version="1"} 11.0\n'
    )
    assert read_metrics(page) == {
        "steps": 12,
        "blocks_in_use": 3,
        "refusals": 5,
        "inter_token_seconds_count": 11,
    }


def test_the_report_compares_cells_of_the_same_size() -> None:
    figures = [
        {"part": THROUGHPUT, "cell": f"{THROUGHPUT}/{name}", "tokens_per_second": rate, "problem": ""}
        for name, rate in (("continuous/8", 800.0), ("static/8", 400.0), ("static/32", 500.0), ("single/1", 100.0))
    ]
    text, failed = report(figures)
    assert "throughput/continuous/8: 8.00 x throughput/single/1, 2.00 x throughput/static/8" in text
    assert not failed
    assert report([*figures, {"part": "", "cell": "load", "problem": "out of memory"}])[1]
