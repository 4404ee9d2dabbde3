"""``isochrone bench`` with a real server: counts that agree, kinds, sequences and deadlines, recorded traces."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from bench_runs import SHORT, bench, measured, successes

from isochrone.bench.results.outcomes import OK
from server_process import ServerProcess


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


@pytest.mark.long
def test_a_recorded_trace_is_sent_once(server: ServerProcess, tmp_path: Path) -> None:
    offsets = [0, 0.01, 0.01, 0.05, 0.3]
    trace = tmp_path / "trace.txt"
    trace.write_text("".join(f"{offset}\n" for offset in offsets))
    _, run = measured(tmp_path, f"http://{server.http_url}", "--model", "double", "--trace", str(trace))
    assert run.outcomes.intended_ns.tolist() == [round(offset * 1e9) for offset in offsets]
    assert run.rate == pytest.approx(len(offsets) / run.seconds)
