"""Several runs of ``isochrone bench``: compared, reported, and a ramp of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_runs import SHORT, bench
from typer.testing import CliRunner

from isochrone.cli.main import app
from server_process import ServerProcess


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
