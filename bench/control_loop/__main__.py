"""``python -m bench.control_loop``: agents at 50 Hz with 20 ms for each tick, over a link that degrades, dies, returns.

A worker, a gateway before it, the link (``examples/robot_fleet/link.py``) before that, and processes of agents, all on
this machine. Each number of agents runs without and with a local model. Prints, for each phase, where the actions came
from and which deadlines were missed. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.control_loop.agents import MODEL
from bench.control_loop.report import HEADER, PhaseReport, phase_report
from bench.ports import free_ports
from bench.worker.machine import RESULTS, describe
from bench.worker.peers.process import HOST, REPOSITORY_ROOT, answers, running, scratch

#: Phase, and what ``link.py`` reads. Degraded: 6 to 14 ms each way.
PHASES = (("good", "good"), ("degraded", "slow 6 8"), ("dead", "stall"), ("returned", "good"))
#: For the start of the agents' processes.
_START_SECONDS = 4.0
_CONFIG = f"""\
name: "{MODEL}"
backend: "identity"
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }} ]
"""


@contextmanager
def servers(directory: Path) -> Iterator[int]:
    """A worker behind a gateway; the gateway's port."""
    (directory / "models" / MODEL / "1").mkdir(parents=True)
    (directory / "models" / MODEL / "config.pbtxt").write_text(_CONFIG)
    http, grpc, front = free_ports(3)
    isochrone = Path(sys.executable).parent / "isochrone"
    worker = [
        *(isochrone, "serve", directory / "models", "--host", HOST, "--no-allow-metrics"),
        *("--http-port", str(http), "--grpc-port", str(grpc)),
    ]
    gateway = [isochrone, "gateway", "--listen", f"{HOST}:{front}", "--upstream", f"{HOST}:{http}"]
    gateway += ["--metrics-port", "0"]
    with (
        running("worker", worker, lambda: answers(f"http://{HOST}:{http}/v2/health/ready"), log=directory / "w.log"),
        running(
            "gateway",
            gateway,
            lambda: answers(f"http://{HOST}:{front}/v2/models/{MODEL}/ready"),
            log=directory / "g.log",
        ),
    ):
        yield front


def run(given: argparse.Namespace, front: int, agents: int, *, has_local: bool) -> list[PhaseReport]:
    link_file = REPOSITORY_ROOT / "examples" / "robot_fleet" / "link.py"
    link = subprocess.Popen(
        [sys.executable, str(link_file), f"{HOST}:{front}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    fleet: list[subprocess.Popen[str]] = []
    try:
        assert link.stdin is not None
        assert link.stdout is not None
        port = int(link.stdout.readline())
        begin = time.monotonic() + _START_SECONDS
        command = [
            *(sys.executable, "-m", "bench.control_loop.agents", "--url", f"{HOST}:{port}", "--hz", str(given.hz)),
            *("--agents", str(agents // given.processes), "--begin", str(begin)),
            *("--seconds", ",".join([str(given.seconds)] * len(PHASES))),
            *(("--local",) if has_local else ()),
            *(("--real-time",) if given.real_time else ()),
        ]
        fleet += [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(given.processes)]
        for number, (_, change) in enumerate(PHASES):
            time.sleep(max(0.0, begin + number * given.seconds - time.monotonic()))
            link.stdin.write(f"{change}\n")
            link.stdin.flush()
        ends = begin + len(PHASES) * given.seconds + 60
        reports = [json.loads(each.communicate(timeout=max(1.0, ends - time.monotonic()))[0]) for each in fleet]
    finally:
        for each in fleet:
            each.kill()
            each.wait()
        link.communicate()
    return [phase_report(name, [each["phases"][number] for each in reports]) for number, (name, _) in enumerate(PHASES)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.control_loop", description=__doc__)
    parser.add_argument("--agents", default="20,200", help="in all processes together, one run for each number")
    parser.add_argument("--hz", type=float, default=50.0)
    parser.add_argument("--processes", type=int, default=2, help="of agents")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each phase")
    parser.add_argument("--real-time", action="store_true", help="only the agents run before other processes (root)")
    given = parser.parse_args()
    given.numbers = [int(each) for each in given.agents.split(",")]
    if any(each % given.processes for each in given.numbers):
        parser.error(f"--agents: expected multiples of --processes ({given.processes})")
    return given


def main() -> None:
    given = arguments()
    # So that the processes that it started end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: list[dict[str, Any]] = []
    with scratch("control-loop") as directory, servers(directory) as front:
        for agents in given.numbers:
            for has_local in (False, True):
                phases = run(given, front, agents, has_local=has_local)
                print(f"\n{agents} agents at {given.hz:g} Hz, {'with' if has_local else 'without'} a local model\n")
                print(HEADER)
                for each in phases:
                    print(each.row())
                ticks = sum(each.due - each.skipped for each in phases)
                spent = sum(each.cpu_seconds for each in phases)
                print(f"\nCPU of the agents' processes: {spent / max(1, ticks) * 1e6:.0f} µs per tick", flush=True)
                results.append({"agents": agents, "local": has_local, "phases": [asdict(each) for each in phases]})
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "control_loop.json"
    path.write_text(json.dumps({"machine": describe(), "settings": vars(given), "runs": results}, indent=1))
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
