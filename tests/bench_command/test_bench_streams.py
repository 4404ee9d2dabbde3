"""``isochrone bench`` with answers in pieces, of a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_runs import SHORT, measured, successes

from isochrone.bench.results.outcomes import FAILED, OK
from server_process import ServerProcess


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
