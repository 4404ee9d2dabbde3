"""`python -m bench.load_tool.ramps`: does `isochrone bench --ramp` find the same limit again?

Our worker, or real Triton, with a model that sleeps. Each ramp has arrivals of its own. The exit status is 1 if the
limits differ by more than 5 %. See bench/README.md.
"""

from __future__ import annotations

import sys
import time

from bench.load_tool.cores import on_cores
from bench.load_tool.isochrone_bench import bench
from bench.load_tool.options import make_parser, markdown_head, markdown_row, write_results
from bench.load_tool.serving import INSTANCES, SERVERS, SLEEP_SECONDS, SLEEPING, server
from bench.worker.load import LoadFailed
from bench.worker.peers import PeerUnavailable

MARGIN = 0.05


def main() -> int:
    parser = make_parser("bench.load_tool.ramps", __doc__)
    parser.add_argument("--server", choices=SERVERS, default="isochrone", help="(default: %(default)s)")
    parser.add_argument("--ramps", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, help="of each rate (default: 10; --short: 2)")
    parser.add_argument("--slo", default="p99<20ms", help="(default: %(default)s)")
    parser.add_argument("--tolerance", type=float, help="where a ramp ends (default: 0.02; --short: 0.04)")
    given = parser.parse_args()
    seconds = given.seconds or (2.0 if given.short else 10.0)
    tolerance = given.tolerance or (0.04 if given.short else 0.02)
    # From half of what the instances can do: lower rates say nothing about the limit.
    first = INSTANCES / SLEEP_SECONDS / 2
    words = [
        "--slo",
        given.slo,
        "--ramp",
        "--rate",
        f"{first:g}",
        "--seconds",
        f"{seconds:g}",
        "--warmup-seconds",
        "0.5",
    ]
    words += ["--tolerance", f"{tolerance:g}", "--processes", str(given.processes)]
    limits: list[float] = []
    print(markdown_head("ramp", "keeps, requests/s", "misses", "runs", "seconds", "verdict"), flush=True)
    try:
        with server(given.server, given.server_cores) as peer, on_cores(given.tool_cores):
            for number in range(given.ramps):
                began = time.monotonic()
                url, seed = str(peer.http_url), str(1000 * number)
                figures = bench(url, SLEEPING.model, *words, "--seed", seed, timeout_seconds=1800)
                ramp = figures["ramp"]
                took = time.monotonic() - began
                kept, missed = (f"{ramp[key] or 0:,.0f}" for key in ("rate", "missed_rate"))
                print(
                    markdown_row(number + 1, kept, missed, len(figures["runs"]), f"{took:.0f}", ramp["verdict"]),
                    flush=True,
                )
                limits.append(ramp["rate"] or 0.0)
    except (PeerUnavailable, LoadFailed) as failure:
        print(f"{given.server}: {failure}", file=sys.stderr)
        return 1
    apart = max(limits) / min(limits) - 1 if min(limits) > 0 else float("inf")
    print(f"the highest limit is {apart:.1%} above the lowest; at most {MARGIN:.0%} may be")
    write_results(given.output, "ramps.json", {"server": given.server, "seconds": seconds, "limits": limits})
    return int(apart > MARGIN)


if __name__ == "__main__":
    sys.exit(main())
