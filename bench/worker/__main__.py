"""`python -m bench.worker`: our worker beside its peers, in one alternating run. See bench/README.md."""

import argparse
import shutil
import sys
from pathlib import Path

from bench.worker.alternating import Alternation
from bench.worker.machine import RESULTS
from bench.worker.models import write_onnx
from bench.worker.plot import draw
from bench.worker.report import print_summary, print_table, write_json
from bench.worker.scenarios import IN_FLIGHT, SCENARIOS, cells
from bench.worker.servers import starters


def arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    names = list(starters({}))
    parser = argparse.ArgumentParser(prog="python -m bench.worker", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="per figure (wrk rounds to whole seconds)")
    parser.add_argument("--servers", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--in-flight", default=",".join(map(str, IN_FLIGHT)))
    parser.add_argument("--quick", action="store_true", help="one round of one second: does everything still work?")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.servers, given.scenarios = given.servers.split(","), given.scenarios.split(",")
    for option, chosen, known in (("--servers", given.servers, names), ("--scenarios", given.scenarios, SCENARIOS)):
        if unknown := sorted(set(chosen) - set(known)):
            parser.error(f"{option}: expected some of {', '.join(known)}, given {', '.join(unknown)}")
    given.in_flight = [int(number) for number in given.in_flight.split(",")]
    if given.quick:
        given.rounds, given.seconds = 1, 1.0
    if "isochrone" not in given.servers:
        given.servers.insert(0, "isochrone")
    for tool in ("wrk", "h2load"):
        if shutil.which(tool) is None:
            parser.error(f"{tool} is not on PATH: run `make peers`, or install wrk and nghttp2-client")
    return given


def say(text: str) -> None:
    """Progress, apart from the report."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    given = arguments()
    chosen = cells(given.scenarios, given.in_flight)
    onnx_files = write_onnx(given.results / "onnx")
    results = Alternation(given.servers, chosen, onnx_files, given.rounds, given.seconds, say).run()
    print_table(results, chosen)
    print_summary(results)
    name = "worker-quick" if given.quick else "worker"
    settings = {"rounds": given.rounds, "seconds": given.seconds}
    write_json(results, chosen, given.results / f"{name}.json", settings)
    draw(results, chosen, given.results / f"{name}.png")
    print(f"\n{results.seconds:.0f} s; written: {given.results / name}.json and .png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
