"""A server that stalls or dies shows in every request of ``isochrone bench``."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from bench_runs import SHORT, measured, stalling_server, start, successes, wait_until

from isochrone.bench.results.outcomes import FAILED, OK, read_run
from sample_models import write_models
from server_process import StartServer


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
