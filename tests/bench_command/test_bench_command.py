"""``isochrone bench`` with real servers: counts that agree, servers that stall, die or are not there, Ctrl-C."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

from isochrone.bench.results.outcomes import FAILED, OK, Run, read_run
from isochrone.cli.main import app
from sample_models import write_models
from server_process import ServerProcess, StartServer

MODELS = ("double", "slow", "accumulate", "repeat", "raises", "words")
SHORT = ("--warmup-seconds", "0", "--seconds", "0.4")


@pytest.fixture(scope="module")
def server(server_factory: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = write_models(tmp_path_factory.mktemp("bench") / "models", *MODELS)
    with server_factory(repository) as server:
        yield server


def bench(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["bench", *words])
    assert result.exit_code == code, result.output
    return result.output


def measured(tmp_path: Path, *words: str, code: int = 0) -> tuple[dict[str, Any], Run]:
    """The JSON and the file of one use of the command."""
    path = tmp_path / "run.npz"
    output = bench(*words, "--json", "--output", str(path), code=code)
    return json.loads(output), read_run(path)


def successes(server: ServerProcess, model: str) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=60)) as connection:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    found = re.findall(rf'^nv_inference_request_success\{{[^}}]*model="{model}"[^}}]*\}} (\S+)$', page, re.MULTILINE)
    return int(sum(map(float, found)))


@pytest.mark.parametrize(
    ("protocol", "load"),
    [
        ("http", ("--rate", "200")),
        ("grpc", ("--rate", "200", "--processes", "2")),
        pytest.param("http", ("--rate", "200", "--processes", "2"), marks=pytest.mark.long),
        pytest.param("grpc", ("--rate", "200"), marks=pytest.mark.long),
        pytest.param("http", ("--concurrency", "4"), marks=pytest.mark.long),
        ("grpc", ("--concurrency", "4")),
    ],
)
def test_counts_are_those_of_the_worker(
    server: ServerProcess, tmp_path: Path, protocol: str, load: tuple[str, ...]
) -> None:
    url = f"{protocol}://{server.http_url if protocol == 'http' else server.grpc_url}"
    before = successes(server, "double")
    figures, run = measured(tmp_path, url, "--model", "double", *load, *SHORT)
    assert len(run.outcomes) > 10
    assert (run.outcomes.outcome == OK).all(), run.errors
    assert successes(server, "double") - before == len(run.outcomes) == figures["total"]["outcomes"]["ok"]
    assert len(run.generators) == (2 if "--processes" in load else 1)
    assert (np.diff(run.outcomes.intended_ns) >= 0).all()
    assert (run.outcomes.ended_ns >= run.outcomes.sent_ns).all()
    if "--rate" in load:
        # Poisson arrivals of the seed: the same with any number of processes and any protocol.
        assert len(run.outcomes) == _EXPECTED_ARRIVALS


def _arrivals() -> int:
    from isochrone.bench.workload.arrivals import poisson

    return sum(map(len, poisson(200, 0.4, 0)))


_EXPECTED_ARRIVALS = _arrivals()


def test_a_table_for_people(server: ServerProcess) -> None:
    output = bench(f"http://{server.http_url}", "--model", "double", "--rate", "100", *SHORT, "--slo", "p50<10s")
    assert "100 requests/s intended" in output
    assert "latency from the intended instant" in output
    assert re.search(r"^all +\d+ ", output, re.MULTILINE)
    assert "p50<10s met" in output


@pytest.mark.long
def test_an_slo_that_is_missed_is_the_exit_status(server: ServerProcess) -> None:
    words = (f"http://{server.http_url}", "--model", "double", "--rate", "200", *SHORT)
    assert "missed" in bench(*words, "--slo", "p50<1us", code=1)


def test_kinds_sequences_and_deadlines(server: ServerProcess, tmp_path: Path) -> None:
    mix = tmp_path / "mix.json"
    kinds = [
        {"model": "double", "weight": 2, "priority": 1},
        {"model": "accumulate", "sequence": 5},
        {"model": "slow", "inputs": "inputs.json", "deadline_ms": 1, "weight": 0.2},
    ]
    mix.write_text(json.dumps({"kinds": kinds, "rate": 150}))
    (tmp_path / "inputs.json").write_text(json.dumps({"MILLISECONDS": [[30]]}))
    before = successes(server, "accumulate")
    figures, run = measured(tmp_path, f"http://{server.http_url}", "--mix", str(mix), *SHORT)
    assert run.kinds == ("double", "accumulate", "slow")
    counts = {name: part["outcomes"] for name, part in figures["kinds"].items()}
    assert counts["double"]["ok"] > counts["accumulate"]["ok"] > 0
    assert successes(server, "accumulate") - before == counts["accumulate"]["ok"]
    # 30 ms of a deadline of 1: the server rejects it, or answers late.
    assert counts["slow"]["late"] + counts["slow"]["rejected"] > 0
    assert counts["slow"]["ok"] == 0


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_sequence_over_both_protocols(server: ServerProcess, tmp_path: Path, protocol: str) -> None:
    url = f"{protocol}://{server.grpc_url}"
    _, run = measured(tmp_path, url, "--model", "accumulate", "--sequence", "4", "--concurrency", "3", *SHORT)
    assert (run.outcomes.outcome == OK).all(), run.errors


def test_a_stream_has_a_first_response(server: ServerProcess, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.json"
    inputs.write_text(json.dumps({"IN": [1, 2, 3]}))
    words = (f"grpc://{server.grpc_url}", "--model", "repeat", "--stream", "--inputs", str(inputs), "--rate", "50")
    _, run = measured(tmp_path, *words, *SHORT)
    assert (run.outcomes.outcome == OK).all(), run.errors
    assert (run.outcomes.first_ns >= run.outcomes.sent_ns).all()
    inputs.write_text(json.dumps({"IN": [-1]}))
    _, run = measured(tmp_path, *words, *SHORT)
    assert (run.outcomes.outcome == FAILED).all()
    assert any("element 0 is negative" in message for message in run.errors)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", ("--stream",)),
        pytest.param("/v1", ("--protocol", "openai", "--completions", "--stream"), marks=pytest.mark.long),
    ],
)
def test_streams_of_events(server: ServerProcess, tmp_path: Path, path: str, words: tuple[str, ...]) -> None:
    """generate_stream, and OpenAI's API, of a worker: an event for each word."""
    url = f"http://{server.http_url}{path}"
    before = successes(server, "words")
    _, run = measured(tmp_path, url, "--model", "words", *words, "--prompt", "Once upon a time", "--rate", "50", *SHORT)
    assert (run.outcomes.outcome == OK).all(), run.errors
    assert successes(server, "words") - before == len(run.outcomes) > 0
    assert (run.outcomes.first_ns >= run.outcomes.sent_ns).all()
    assert (run.outcomes.first_ns <= run.outcomes.ended_ns).all()


@pytest.mark.long
def test_a_recorded_trace_is_sent_once(server: ServerProcess, tmp_path: Path) -> None:
    offsets = [0, 0.01, 0.01, 0.05, 0.3]
    trace = tmp_path / "trace.txt"
    trace.write_text("".join(f"{offset}\n" for offset in offsets))
    _, run = measured(tmp_path, f"http://{server.http_url}", "--model", "double", "--trace", str(trace))
    assert run.outcomes.intended_ns.tolist() == [round(offset * 1e9) for offset in offsets]
    assert run.rate == pytest.approx(len(offsets) / run.seconds)


def test_errors_of_the_model_are_counted_by_message(server: ServerProcess, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.json"
    inputs.write_text(json.dumps([{"X": [[-1, 0, 0, 0]]}, {"X": [[1, 0, 0, 0]]}]))
    words = (f"http://{server.http_url}", "--model", "raises", "--inputs", str(inputs), "--rate", "100")
    _, run = measured(tmp_path, *words, *SHORT)
    assert sum(run.errors.values()) == np.count_nonzero(run.outcomes.outcome == FAILED)
    assert abs(2 * sum(run.errors.values()) - len(run.outcomes)) <= 1, "the two requests are sent in turn"
    assert "X is negative" in next(iter(run.errors))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--model", "absent", "--rate", "5"], "name a model and version that it serves, given model 'absent'"),
        (["--model", "double", "--version", "9", "--rate", "5"], "name a model and version"),
        (["--model", "double"], "expected --rate NUMBER or --trace FILE"),
        (["--model", "double", "--rate", "5", "--slo", "p99"], "--slo: expected"),
        (["--model", "double", "--rate", "5", "--ramp"], "--ramp: expected --slo with it"),
        (
            ["--model", "double", "--rate", "5", "--output", "/absent/run.npz"],
            "--output: expected a file in a directory",
        ),
        (["--model", "double", "--rate", "5", "--shape", "Z:3"], "shapes.Z: expected an input of 'double' (X)"),
        (["--model", "double", "--rate", "5", "--inputs", "/absent.json"], "/absent.json: file: expected"),
    ],
)
def test_errors_are_one_sentence(server: ServerProcess, words: list[str], error: str) -> None:
    output = bench(f"http://{server.http_url}", *words, code=2)
    assert error in output
    assert output.startswith("isochrone bench: ")
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_no_server(scheme: str) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    output = bench(f"{scheme}://127.0.0.1:{port}", "--model", "m", "--rate", "5", code=2)
    assert f"cannot connect to {'' if scheme == 'http' else 'grpc://'}127.0.0.1:{port}" in output
    assert "name the URL of another" in output
    wrong = bench("http://", "--model", "m", "--rate", "5", code=2)
    assert wrong.startswith("isochrone bench: URL: expected HOST:PORT")
    plain = bench("http://h:1", "--model", "m", "--rate", "5", "--ca", __file__, code=2)
    assert plain.startswith("isochrone bench: URL: expected https://")


class StallingServer:
    """Answers metadata; holds the answers of inference until ``release`` is set, then answers all at once."""

    METADATA = (
        b'{"name":"m","versions":["1"],"platform":"","outputs":[],'
        b'"inputs":[{"name":"X","datatype":"FP32","shape":[1]}]}'
    )

    def __init__(self) -> None:
        self.release = threading.Event()
        self.held = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            thread.start()
            self._threads.append(thread)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while first := lines.readline():
                length = 0
                while (line := lines.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                lines.read(length)
                body = self.METADATA
                if first.startswith(b"POST"):
                    self.held += 1
                    self.release.wait(60)
                    body = b"{}"
                try:
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                except OSError:
                    return

    def close(self) -> None:
        self.release.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        for thread in self._threads:
            thread.join()


@contextmanager
def stalling_server() -> Iterator[StallingServer]:
    server = StallingServer()
    try:
        yield server
    finally:
        server.close()


@pytest.mark.parametrize("limit", [pytest.param(1024, marks=pytest.mark.long), 4])
def test_a_server_that_stalls_shows_in_every_request_of_the_stall(tmp_path: Path, limit: int) -> None:
    """With few in flight, most requests wait in the generator; their latencies are no shorter for it."""
    with stalling_server() as server:
        ends = time.monotonic() + 60

        def release_when_all_are_due() -> None:
            while not server.held and time.monotonic() < ends:
                time.sleep(0.01)
            time.sleep(0.5)
            server.release.set()

        waiting = threading.Thread(target=release_when_all_are_due)
        waiting.start()
        words = ("--model", "m", "--rate", "100", "--arrivals", "constant", "--max-in-flight", str(limit))
        figures, run = measured(tmp_path, f"http://127.0.0.1:{server.port}", *words, *SHORT)
        waiting.join()
    outcomes = run.outcomes
    assert len(outcomes) == 40
    assert (outcomes.outcome == OK).all(), run.errors
    # Held from before the first answer until after the last request was due: by the intervals of the requests.
    assert (outcomes.ended_ns > outcomes.intended_ns[-1]).all()
    latencies = outcomes.ended_ns - outcomes.intended_ns
    assert (latencies >= outcomes.intended_ns[-1] - outcomes.intended_ns).all()
    waited = [remark for remark in figures["remarks"] if "waited in the generator" in remark]
    assert bool(waited) is (limit == 4)


def start(*words: str) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("isochrone")), "bench", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition: Any) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_shows_what_was_measured(server: ServerProcess, number: signal.Signals) -> None:
    before = successes(server, "double")
    words = ("--model", "double", "--rate", "50", "--warmup-seconds", "0", "--seconds", "600", "--processes", "2")
    process = start(f"http://{server.http_url}", *words, "--json")
    try:
        wait_until(lambda: successes(server, "double") > before + 10)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number, errors
    figures = json.loads(output)
    assert figures["interrupted"] is True
    assert figures["total"]["outcomes"]["ok"] > 10
    assert 0 < figures["seconds"] < 600
    _, alive = psutil.wait_procs(children, timeout=30)
    assert len(children) == 2
    assert not alive


@pytest.mark.long
def test_no_generator_outlives_the_command(server: ServerProcess) -> None:
    before = successes(server, "double")
    words = ("--model", "double", "--rate", "50", "--warmup-seconds", "0", "--seconds", "600")
    process = start(f"http://{server.http_url}", *words)
    try:
        wait_until(lambda: successes(server, "double") > before)
        children = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.communicate()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert len(children) == 1
    assert not alive


@pytest.mark.long
@pytest.mark.parametrize(("scheme", "load"), [("http", "--rate"), ("grpc", "--rate"), ("http", "--concurrency")])
def test_a_server_that_dies_midway(server_factory: StartServer, tmp_path: Path, scheme: str, load: str) -> None:
    repository = write_models(tmp_path / "models", "double")
    path = tmp_path / "run.npz"
    with server_factory(repository, check_exit=False) as server:
        words = ("--model", "double", load, "20", "--warmup-seconds", "0", "--seconds", "3", "--output", str(path))
        process = start(f"{scheme}://{server.http_url}", *words)
        try:
            wait_until(lambda: successes(server, "double") > 3)
            server.kill()
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, errors
    run = read_run(path)
    assert set(run.outcomes.outcome.tolist()) == {OK, FAILED}
    assert sum(run.errors.values()) == np.count_nonzero(run.outcomes.outcome == FAILED)
    assert any("cannot connect" in message for message in run.errors)
    assert "cannot connect" in output


@pytest.mark.long
def test_runs_are_compared(server: ServerProcess, tmp_path: Path) -> None:
    files = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for path in files:
        bench(f"http://{server.http_url}", "--model", "double", "--rate", "200", *SHORT, "--output", str(path))
    result = CliRunner().invoke(app, ["bench", "compare", *map(str, files)])
    assert result.exit_code in (0, 1), result.output
    assert "p99" in result.output
    assert "given no such file" in CliRunner().invoke(app, ["bench", "compare", str(files[0]), "absent.npz"]).output
    page = tmp_path / "report.html"
    assert "report: " in bench("report", "--to", str(page), *map(str, files))
    assert "<svg" in page.read_text()


@pytest.mark.long
def test_a_ramp_ends_between_two_rates(server: ServerProcess, tmp_path: Path) -> None:
    """A model that sleeps 20 ms, one at a time: at most 50 requests a second can be answered."""
    inputs = tmp_path / "inputs.json"
    inputs.write_text(json.dumps({"MILLISECONDS": [[20]]}))
    words = ("--model", "slow", "--inputs", str(inputs), "--slo", "p50<100ms", "--ramp", "--rate", "5")
    limits = ("--tolerance", "0.5", "--max-rate", "200", "--warmup-seconds", "0", "--seconds", "3")
    output = bench(f"http://{server.http_url}", *words, *limits, "--arrivals", "constant", "--json")
    ramp = json.loads(output)["ramp"]
    assert ramp["finished"] is True
    assert ramp["rate"] < 60
    assert ramp["missed_rate"] > ramp["rate"] >= 5
