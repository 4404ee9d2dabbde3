"""``isochrone why`` on real processes: addresses, groups of processes, dumped files, and clear messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from flight_fleets import is_over, send, until, write_sleeper

from gateway_process import StartGateway
from server_process import StartServer


def run_why(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("isochrone")), "why", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.long
def test_one_worker_and_its_dump(server_factory: StartServer, tmp_path: Path) -> None:
    models = write_sleeper(tmp_path / "models")
    dump = tmp_path / "dump"
    with server_factory(models, "--dump-flights", str(dump)) as worker:
        address = f"127.0.0.1:{worker.metrics_port}"
        for _ in range(4):
            assert send(worker, 5) == 200
        send(worker, 200, "late", deadline_ms=60)
        until(lambda: is_over(worker, "late"))
        said = run_why("late", "--worker", address)
        assert said.returncode == 0, said.stderr
        assert said.stdout.startswith("cause: slow worker\n")
        assert "no gateway remembers it" in said.stdout
        unknown = run_why("never-sent", "--worker", address)
        assert unknown.returncode == 1
        assert "no process remembers request 'never-sent': requests are kept for" in unknown.stderr
        away = run_why("late", "--worker", "127.0.0.1:9")
        assert away.returncode == 1
        assert "no process could be asked" in away.stderr
        until(lambda: dump.is_dir() and any(dump.iterdir()))
    (file,) = dump.glob("worker-*.jsonl")
    found = json.loads(run_why("late", "--file", str(file), "--json").stdout)
    assert found["cause"] == "slow worker"
    assert sum(part["ns"] for part in found["explanation"]["parts"]) == found["explanation"]["total_ns"]
    assert "only deadline misses" in run_why("other", "--file", str(file)).stderr


@pytest.mark.long
def test_a_group_of_processes_and_a_recorder_that_is_off(
    server_factory: StartServer, gateway_factory: StartGateway, tmp_path: Path
) -> None:
    models = write_sleeper(tmp_path / "models")
    with (
        server_factory(models, "--flight-recorder", "off") as worker,
        gateway_factory([worker], "--processes", "2") as gateway,
    ):
        names = [f"request-{number}" for number in range(8)]
        for name in names:
            assert send(gateway, 5, name) == 200
        for name in names:
            said = run_why(name, "--gateway", f"127.0.0.1:{gateway.metrics_port}", "--json")
            assert said.returncode == 0, said.stderr
            assert json.loads(said.stdout)["explanation"]["id"] == name
        off = run_why(names[0], "--worker", f"127.0.0.1:{worker.metrics_port}")
        assert "the flight recorder is off" in off.stderr
