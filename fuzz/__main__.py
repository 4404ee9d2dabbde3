"""``make fuzz ARGS='--seconds 60 TARGET …'``: runs targets, prints a table, keeps what is found in the corpus.

With atheris each target runs in a process of its own, guided by coverage; without it, plain mutations run here. The
exit status is 1 if a promise broke.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.findings import failure, keep, minimised
from fuzz.mutation import mutations
from fuzz.selection import selected
from fuzz.target import Target
from fuzz.targets import TARGETS

ROOT = Path(__file__).parents[1]


@dataclass
class Run:
    """What came of one target."""

    target: Target
    runs: int = 0
    #: Places of instrumented code that were reached; None: not measured.
    coverage: int | None = None
    #: Inputs that reached new code, and those that broke a promise.
    reached: list[bytes] = field(default_factory=list)
    found: list[bytes] = field(default_factory=list)
    #: The fuzzer's process ended before its time: why.
    ended: str = ""


def plain(target: Target, seconds: float, seed: int) -> Run:
    run, causes = Run(target), set()
    given = list(target.inputs())
    end = time.monotonic() + seconds
    for data in mutations(given, seed):
        if run.runs % 64 == 0 and time.monotonic() > end:
            break
        run.runs += 1
        known = failure(target, data)
        if known is not None and known not in causes:
            causes.add(known)
            run.found.append(data)
    return run


def guided(target: Target, seconds: float) -> Run:
    with tempfile.TemporaryDirectory(prefix="isochrone-fuzz-") as folder:
        command = [sys.executable, "-m", "fuzz.guided", target.name, str(max(int(seconds), 1)), folder]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
        run = Run(target)
        for path in sorted(Path(folder, "corpus").glob("*")):
            if not path.name.startswith("seed-"):
                run.reached.append(path.read_bytes())
        found = sorted(Path(folder, "found").glob("*"))
        run.found = [path.read_bytes() for path in found if path.name.isdigit()]
        # Those of libFuzzer itself, as "timeout-…": trying them here could take for ever.
        kept = [keep(target, path.read_bytes()) for path in found if not path.name.isdigit()]
    run.runs, run.coverage = counts(ended.stderr)
    if ended.returncode or kept:
        names = [f"kept: {path}" for path in kept]
        run.ended = "\n".join([*ended.stderr.splitlines()[-12:], *names])
    return run


def counts(text: str) -> tuple[int, int | None]:
    """Runs, and places of the code that were reached, by libFuzzer's own words."""
    runs = re.findall(r"number_of_executed_units: (\d+)|Done (\d+) runs|^#(\d+)\t", text, re.M)
    places = re.findall(r"cov: (\d+)", text)
    coverage = int(places[-1]) if places else None
    return max((int(number) for each in runs for number in each if number), default=0), coverage


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description="Fuzzes the parsers of bytes that strangers send.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="names of targets; all without")
    parser.add_argument("--seconds", type=float, default=60, help="for each target (60)")
    parser.add_argument("--plain", action="store_true", help="plain mutations, also where atheris is installed")
    parser.add_argument("--seed", type=int, default=1, help="of plain mutations (1)")
    parser.add_argument("--grow", action="store_true", help="keep inputs that reach new code in the corpus, too")
    parser.add_argument("--list", action="store_true", help="list the targets and what each promises")
    given = parser.parse_args(arguments)
    known = {target.name: target for target in TARGETS}
    for name in given.targets:
        if name not in known:
            parser.error(f"no target '{name}'; the targets are {', '.join(known)}")
    chosen = [known[name] for name in given.targets] or list(TARGETS)
    if given.list:
        for target in chosen:
            print(f"{target.name}: {target.promise}")
        return 0
    is_guided = not given.plain and importlib.util.find_spec("atheris") is not None
    if not is_guided and not given.plain:
        print("atheris is not installed (pip install 'isochrone[fuzz]'): plain mutations, without coverage")
    return _run(chosen, given, is_guided)


def _run(chosen: Sequence[Target], given: argparse.Namespace, is_guided: bool) -> int:
    print(f"{'target':22} {'runs':>10} {'runs/s':>8} {'coverage':>8} {'kept':>5} {'broken':>6}", flush=True)
    broken = 0
    for target in chosen:
        began = time.monotonic()
        run = guided(target, given.seconds) if is_guided else plain(target, given.seconds, given.seed)
        rate = run.runs / max(time.monotonic() - began, 0.001)
        grown = selected(target, run.reached) if given.grow else []
        for data in grown:
            keep(target, data, prefix="")
        coverage = "-" if run.coverage is None else run.coverage
        row = f"{target.name:22} {run.runs:10,} {rate:8,.0f} {coverage:>8} {len(grown):5}"
        print(f"{row} {len(run.found):6}", flush=True)
        for data in run.found:
            print(_kept_finding(target, data), flush=True)
        if run.ended:
            print(f"  the fuzzer ended early:\n{run.ended}", flush=True)
        broken += len(run.found) + bool(run.ended)
    return 1 if broken else 0


def _kept_finding(target: Target, data: bytes) -> str:
    known = failure(target, data)
    if known is None:
        return f"  did not happen again: {data[:200]!r}"
    smaller = minimised(target, data)
    path = keep(target, smaller)
    return f"  {known}: {smaller[:200]!r} in {path.relative_to(ROOT)}"


if __name__ == "__main__":
    raise SystemExit(main())
