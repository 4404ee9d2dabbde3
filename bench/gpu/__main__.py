"""``python -m bench.gpu``: the GPU benches, one after the other, or those that ``--only`` names.

Each program runs in a process of its own and writes its results as it goes. Without ``--limit`` each takes the rounds
and seconds of its own defaults, about 35 minutes in all; with it each gets a share, in which it takes fewer rounds
and shorter figures. ``--quick`` is a check that everything works, in about four minutes on one GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.budget import Need, share
from bench.worker.peers.process import REPOSITORY_ROOT, scratch


@dataclass(frozen=True)
class Program:
    """A module of this folder and its options; ``shares_models``: it takes a repository that the others use too."""

    name: str
    need: Need
    quick: tuple[str, ...]
    shares_models: bool = True


#: ``need`` includes what comes before the first figure: models are exported, servers started, graphs captured.
PROGRAMS = (
    Program("raw", Need(40, 180), ("--seconds", "0.2", "--rounds", "1", "--batches", "1,16,64")),
    Program("serve", Need(110, 640), ("--seconds", "0.5", "--warm", "0.3", "--rounds", "1", "--cells", "*/overlap/*")),
    Program("two_tower", Need(80, 270), ("--seconds", "10", "--step-seconds", "3", "--steps", "3")),
    Program("memory", Need(60, 240), ("--cycles", "10", "--seconds", "3"), shares_models=False),
    Program(
        "generation",
        Need(120, 560),
        (
            "--seconds",
            "1",
            "--warm",
            "0.5",
            "--streams",
            "1,32,64",
            "--cuts",
            "3",
            "--grace",
            "1",
            "--peer-limit",
            "30",
        ),
    ),
    Program("green_contexts", Need(30, 200), ("--seconds", "0.5", "--rounds", "1", "--shares", "16")),
)
#: Of a program that hangs, in a run without a limit.
_HANGS_SECONDS = 1200.0
#: A program that is at its limit ends what it has begun, stops its servers and reports.
_END_SECONDS = 10.0
#: One that is ended from outside has so long to stop what it has started.
_STOP_SECONDS = 40.0
#: Of --device cpu --tiny, on two cores.
_TINY = {
    "raw": ("--batches", "1,8"),
    "serve": ("--in-flight", "16", "--generators", "2"),
    "two_tower": ("--rate", "50", "--gateways", "1", "--generators", "2", "--limit-ms", "200"),
    "memory": ("--weight-gib", "0.01"),
    "generation": ("--streams", "1,8", "--generators", "2"),
}


def command(program: Program, given: argparse.Namespace, repository: Path, seconds: float | None) -> list[str]:
    """The words of one program. ``seconds``: its share of the limit."""
    words = [sys.executable, "-m", f"bench.gpu.{program.name}", "--device", given.device]
    if seconds is not None:
        words += ["--limit", f"{max(5.0, seconds - _END_SECONDS):.0f}"]
    words += program.quick if given.quick else ()
    if given.tiny:
        words += ["--tiny", *_TINY.get(program.name, ())]
    if program.shares_models:
        words += ["--repository", str(repository)]
    return words + (["--results", str(given.results)] if given.results else [])


def run(words: Sequence[str], seconds: float) -> int:
    """Its exit status; 124 if the time was over. It gets time to stop what it has started."""
    process = subprocess.Popen(words, cwd=REPOSITORY_ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        # As Ctrl-C: context managers end servers and generators by their pids.
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return 124


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--only", default=",".join(names), help="programs, in this order")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--limit", type=float, help="seconds for all of them together; none if left out")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small networks")
    parser.add_argument("--repository", type=Path, help="kept between runs; a temporary one if left out")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    chosen = given.only.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"--only: expected some of {', '.join(names)}, given {', '.join(sorted(unknown))}")
    os.environ.setdefault("PYTHONPATH", f"{REPOSITORY_ROOT / 'src'}:{REPOSITORY_ROOT}")
    ends = time.monotonic() + given.limit if given.limit else None
    outcomes = {}
    programs = [each for each in PROGRAMS if each.name in chosen]
    with scratch("gpu-models") as directory:
        for number, program in enumerate(programs):
            seconds, most = None, _HANGS_SECONDS
            if ends is not None:
                left = ends - time.monotonic() - _STOP_SECONDS
                if left < 2 * _END_SECONDS:
                    outcomes[program.name] = "not begun: --limit"
                    continue
                seconds = share(left, [each.need for each in programs[number:]])
                # One that takes longer than its share takes it from those behind it, not from the limit.
                most = min(left, seconds + 2 * _END_SECONDS)
            print(f"\n## {program.name}\n", flush=True)
            began = time.monotonic()
            status = run(command(program, given, given.repository or directory, seconds), most)
            outcomes[program.name] = f"exit status {status} after {time.monotonic() - began:.0f} s"
    print("\n" + "\n".join(f"{name}: {outcome}" for name, outcome in outcomes.items()))
    return 0 if all(outcome.startswith("exit status 0") for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
