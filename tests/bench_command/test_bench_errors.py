"""What ``isochrone bench`` says of errors: of models, of flags, of servers that are not there."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from bench_runs import SHORT, bench, measured

from isochrone.bench.results.outcomes import FAILED
from server_process import ServerProcess


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
