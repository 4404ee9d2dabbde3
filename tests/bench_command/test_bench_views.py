"""What ``isochrone bench`` shows of runs: names as they are, first tokens of streams alone, what limits the figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from isochrone.bench.analysis.slo import parse_slo
from isochrone.bench.analysis.summary import summarize
from isochrone.bench.generator import Progress
from isochrone.bench.results.outcomes import FAILED, OK, GeneratorUse, Run, outcomes_from, write_run
from isochrone.cli.bench.progress import line_of
from isochrone.cli.bench.view import print_run, remarks, run_json
from isochrone.cli.console import cell, plain
from isochrone.cli.main import app
from isochrone.clock import MILLISECOND, SECOND

HOSTILE = "[red]x[/red]\x1b[2J\n[/]"


def run_of(latency_ms: float = 5.0, *, kinds: tuple[str, ...] = ("m",), seconds: float = 10.0) -> Run:
    count = 1000
    intended = (np.arange(count) * seconds * SECOND / count).astype(np.int64)
    columns = {
        "intended_ns": intended,
        "sent_ns": intended,
        "first_ns": np.full(count, -1),
        "ended_ns": intended + round(latency_ms * MILLISECOND),
        "outcome": np.full(count, OK),
        "kind": np.arange(count) % len(kinds),
    }
    return Run(
        target="http://h:1",
        kinds=kinds,
        rate=100.0,
        in_flight=None,
        seconds=seconds,
        started_at="2026-01-01T00:00:00Z",
        outcomes=outcomes_from(columns),
        generators=(GeneratorUse(0.2, 0, 0, 0),),
        errors={},
    )


def test_names_and_messages_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    run = replace(run_of(kinds=(HOSTILE, "b")), target=f"http://{HOSTILE}", errors={HOSTILE: 3})
    print_run(run, summarize(run), parse_slo("p99<1s").judge(summarize(run)))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.count(r"[red]x[/red]\x1b[2J\n[/]") == 4, shown
    assert plain("a\tb\u202e") == r"a\tb\u202e"
    assert cell("[b]") == r"\[b]"


def test_names_of_compared_files_are_shown_as_they_are(tmp_path: Path) -> None:
    files = [tmp_path / f"[bold]{name}.npz" for name in ("a", "b")]
    for path in files:
        write_run(path, run_of())
    output = CliRunner().invoke(app, ["bench", "compare", *map(str, files)]).output
    assert "[bold]a" in output
    assert "[bold]b" in output
    assert "No difference shown." in output


def test_only_streams_show_a_first_token(capsys: pytest.CaptureFixture[str]) -> None:
    unary = run_of()
    print_run(unary, summarize(unary), ())
    assert "first token" not in capsys.readouterr().out
    assert summarize(unary).as_json()["total"]["first_token_ms"] is None
    outcomes = replace(unary.outcomes, first_ns=unary.outcomes.intended_ns + MILLISECOND)
    stream = replace(unary, outcomes=outcomes, streams=("m",))
    print_run(stream, summarize(stream), ())
    assert "first token" in capsys.readouterr().out


def test_limits_of_the_first_token_are_those_of_streams() -> None:
    """Every second request is unary: it has no first token, and is over no limit of it."""
    run = run_of(kinds=("stream", "unary"))
    first = np.where(run.outcomes.kind == 0, run.outcomes.intended_ns + MILLISECOND, -1)
    run = replace(run, outcomes=replace(run.outcomes, first_ns=first), streams=("stream",))
    (judgement,) = parse_slo("ttft_p90<2ms").judge(summarize(run))
    assert judgement.evidence.total == 500
    assert judgement.evidence.over == 0


def test_a_limit_of_the_first_token_needs_a_stream() -> None:
    words = ["bench", "http://h:1", "--model", "m", "--rate", "5", "--slo", "ttft_p99<1s"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "--slo: expected --stream with limits of ttft_" in result.output


def test_what_limits_the_figures_is_said() -> None:
    assert remarks(run_of()) == []
    assert any("4 requests that were in flight" in each for each in remarks(replace(run_of(), unfinished=4)))
    assert run_json(run_of(), summarize(run_of()), (), is_interrupted=False)["unfinished"] == 0
    # Half of them take 2 s, and the others 5 ms: without a warm-up, a tenth of the answers is not seen.
    run = run_of()
    ended = np.where(np.arange(1000) % 2, run.outcomes.ended_ns, run.outcomes.intended_ns + 2 * SECOND)
    slow = replace(run, outcomes=replace(run.outcomes, ended_ns=ended))
    assert any("10% too low" in each and "--warmup-seconds" in each for each in remarks(slow))
    assert not any("too low" in each for each in remarks(replace(slow, warmup_seconds=2.0)))
    overloaded = np.arange(1000) * 20 * MILLISECOND
    grown = replace(run, outcomes=replace(run.outcomes, ended_ns=overloaded + MILLISECOND))
    assert summarize(grown).total.rate == pytest.approx(50, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({}, 0, "No difference shown"),
        ({"rate": 500.0}, 2, "different rates"),
        ({"rate": None, "in_flight": 3}, 2, "open loop"),
        ({"kinds": ("other",)}, 2, "different kinds"),
        ({"generators": (GeneratorUse(0.99, 0, 0, 0),)}, 2, "The generator was the bottleneck"),
    ],
)
def test_the_exit_status_of_a_comparison(changes: dict[str, object], code: int, says: str, tmp_path: Path) -> None:
    write_run(tmp_path / "a.npz", run_of())
    write_run(tmp_path / "b.npz", replace(run_of(), **changes))  # type: ignore[arg-type]
    result = CliRunner().invoke(app, ["bench", "compare", str(tmp_path / "a.npz"), str(tmp_path / "b.npz")])
    assert result.exit_code == code, result.output
    assert says in " ".join(result.output.split())


def test_a_slower_run_is_1_and_no_failure(tmp_path: Path) -> None:
    write_run(tmp_path / "a.npz", run_of(5))
    write_run(tmp_path / "b.npz", run_of(9))
    result = CliRunner().invoke(app, ["bench", "compare", str(tmp_path / "a.npz"), str(tmp_path / "b.npz")])
    assert result.exit_code == 1, result.output


def test_the_line_of_a_run_under_way() -> None:
    line = line_of("[b]http", Progress(2.0, (10, 0, 0, 1, 0), 3, MILLISECOND, 2 * MILLISECOND), 10)
    assert line.startswith("[b]http: 2 of 10 s, 11 requests (6/s), 1 failed;")
    assert FAILED == 3
