"""`python -m bench.gateway.hop`: the cost of one hop through our gateway, Envoy and HAProxy, in one alternating run.

Added median at one request in flight, requests/s at 32 and 256, CPU per request; HTTP/1.1 and gRPC.
See bench/README.md.
"""

import argparse
import shutil
import sys
from pathlib import Path

from bench.gateway.bystanders import warning
from bench.gateway.hop_cells import OURS, hop_cells
from bench.gateway.hop_report import print_report, write_json
from bench.gateway.hop_run import HopRun, Start
from bench.gateway.placement import placements
from bench.gateway.proxies import envoy, haproxy, isochrone_gateway
from bench.worker.machine import RESULTS
from bench.worker.scenarios import IDENTITY_64, TRANSPORTS


def starters(policy: str) -> dict[str, Start]:
    """Name → start function. Ours is first: every ratio is to it."""
    return {
        OURS: lambda upstreams: isochrone_gateway.start(upstreams, policy, model=IDENTITY_64.model),
        "envoy": envoy.start,
        "haproxy": haproxy.start,
    }


def arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    names = list(starters(""))
    parser = argparse.ArgumentParser(prog="python -m bench.gateway.hop", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="per figure (wrk rounds to whole seconds)")
    parser.add_argument("--proxies", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--transports", default=",".join(TRANSPORTS), help=f"of {', '.join(TRANSPORTS)}")
    parser.add_argument("--policy", default="prequal", help="of our gateway")
    parser.add_argument("--quick", action="store_true", help="one round of one second: does everything still work?")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.proxies, given.transports = given.proxies.split(","), given.transports.split(",")
    for option, chosen, known in (
        ("--proxies", given.proxies, names),
        ("--transports", given.transports, list(TRANSPORTS)),
    ):
        if unknown := sorted(set(chosen) - set(known)):
            parser.error(f"{option}: expected some of {', '.join(known)}, given {', '.join(unknown)}")
    if given.quick:
        given.rounds, given.seconds = 1, 1.0
    for tool in ("wrk", "h2load"):
        if shutil.which(tool) is None:
            parser.error(f"{tool} is not on PATH: run `make peers`, or install wrk and nghttp2-client")
    return given


def say(text: str) -> None:
    """Print progress, separate from the report."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    given = arguments()
    if busy := warning():
        say(busy)
    cells = hop_cells(given.transports)
    chosen = {name: start for name, start in starters(given.policy).items() if name in given.proxies}
    results = HopRun(chosen, cells, placements(), given.rounds, given.seconds, say).run()
    print_report(results, cells)
    settings = {"rounds": given.rounds, "seconds": given.seconds, "policy": given.policy}
    path = given.results / ("gateway-hop-quick.json" if given.quick else "gateway-hop.json")
    write_json(results, cells, path, settings)
    print(f"\n{results.seconds:.0f} s; written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
