"""`python -m bench.security`: what TLS, access rules and the audit of requests cost, as ratios to a plain server.

The same worker, and a gateway before workers, once for each state; all of them run all the time, on the same cores. In
turns, round by round, each is loaded over HTTP and gRPC with 1, 8 and 32 requests in flight; every round begins and
ends with the plain server, and ratios are to the mean of those two. Then new connections, one request each, with full
handshakes and with resumed sessions. Before that, each server must refuse what its state refuses. `--wrk PATH` loads
over HTTP with wrk where it can: rows with client certificates, and gRPC, are always `isochrone bench`, and have a plain
row of their own. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.observe_cost import MODEL, MODEL_CONFIG, cores_of, say
from bench.security import connections
from bench.security.load import OWN, generator_of, load, write_script
from bench.security.servers import Server, check, check_audit, start
from bench.security.states import GATEWAY_ONLY, PLAIN, STATES, Material, provider
from bench.worker.machine import RESULTS, describe

Figure = dict[str, float]
#: Of a round: by state and generator.
Turn = tuple[Server, str]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.security", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one figure")
    parser.add_argument("--short", action="store_true", help="one round of one second, to see that it works")
    parser.add_argument("--setup", choices=("worker", "gateway", "both"), default="both")
    parser.add_argument("--protocol", choices=("http", "grpc", "both"), default="both")
    parser.add_argument("--in-flight", type=int, action="append", metavar="N", help="(default: 1, 8 and 32)")
    names = [each.name for each in STATES if each.name != PLAIN]
    parser.add_argument("--only", action="append", choices=names, help="states beside 'plain'")
    parser.add_argument("--no-connections", action="store_true", help="without the part on new connections")
    parser.add_argument("--workers", type=int, help="behind a gateway (default: one per core of --worker-cores)")
    parser.add_argument("--front-cores", type=cores_of, help="of the process that is loaded: 0, or 0-1")
    parser.add_argument("--worker-cores", type=cores_of, help="of the workers behind a gateway")
    parser.add_argument("--generator-cores", type=cores_of, help="of the generator")
    parser.add_argument("--processes", type=int, help="of the generator (default: one per core, up to 4)")
    parser.add_argument("--wrk", default="", help="path of wrk (default: isochrone bench)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the tables")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.short:
        given.rounds, given.seconds = 1, 1.0
    given.in_flight = given.in_flight or [1, 8, 32]
    cores = sorted(os.sched_getaffinity(0))
    many = len(cores) >= 8
    given.front_cores = given.front_cores or cores[:1]
    given.worker_cores = given.worker_cores or (cores[1:4] if many else cores[:1])
    given.generator_cores = given.generator_cores or (cores[4:] if many else cores[1:] or cores)
    given.workers = given.workers or len(given.worker_cores)
    given.processes = given.processes or min(4, len(given.generator_cores))
    return given


def measure_requests(
    found: dict[str, Any],
    servers: list[Server],
    given: argparse.Namespace,
    material: Material,
    script: Path,
    save: Callable[[], None],
) -> None:
    """``found``: by cell, and there by state, the figures of each round, with ratios to those of the plain server."""
    plain, others = servers[0], servers[1:]
    protocols = ("http", "grpc") if given.protocol == "both" else (given.protocol,)
    for number in range(given.rounds):
        for protocol in protocols:
            for in_flight in given.in_flight:
                turn = number % max(1, len(others))
                turns = [(each, generator_of(each.state, protocol, given)) for each in others[turn:] + others[:turn]]
                plains = [(plain, name) for name in sorted({name for _, name in turns} or {OWN})]
                order: list[Turn] = [*plains, *turns, *plains]
                figures = [
                    load(each, material, protocol, in_flight, name, given, script, given.seconds)
                    for each, name in order
                ]
                _note(found.setdefault(f"{protocol}, {in_flight} in flight", {}), order, figures)
        save()
        say(f"round {number + 1} of {given.rounds}")


def _note(cell: dict[str, list[Figure]], order: list[Turn], figures: list[Figure]) -> None:
    """The figures of one round, each beside those of the plain server with the same generator."""
    for (server, generator), figure in zip(order, figures, strict=True):
        base = [
            other
            for (each, name), other in zip(order, figures, strict=True)
            if each.state.name == PLAIN and name == generator
        ]
        name = server.state.name if server.state.name != PLAIN else f"{PLAIN} ({generator})"
        ratios = {
            f"{key}_ratio": figure[key] / statistics.mean(each[key] for each in base) for key in ("rate", "p50_us")
        }
        ratios["cpu_extra_us"] = figure["cpu_us"] - statistics.mean(each["cpu_us"] for each in base)
        cell.setdefault(name, []).append(figure | ratios)


def measure_connections(servers: list[Server], given: argparse.Namespace, material: Material) -> dict[str, Any]:
    """By kind of connection: connections per second, and µs of CPU time of the server for each."""
    by_name = {each.state.name: each for each in servers}
    kinds = [(PLAIN, False), *((name, resumes) for name in ("TLS", "mTLS") for resumes in (False, True))]
    kinds = [kind for kind in kinds if kind[0] in by_name]
    found: dict[str, list[Figure]] = {}
    for number in range(given.rounds):
        for name, resumes in kinds if number % 2 else reversed(kinds):
            kind = name if name == PLAIN else f"{name}, {'resumed' if resumes else 'full handshake'}"
            found.setdefault(kind, []).append(_connect(by_name[name], resumes, given, material))
    return found


def _connect(server: Server, resumes: bool, given: argparse.Namespace, material: Material) -> Figure:
    words = [str(server.port), "--seconds", f"{given.seconds:g}", "--processes", str(given.processes)]
    words += ["--ca", str(material.ca)] if server.state.tls else []
    if server.state.mutual:
        certificate, key = material.pair("client")
        words += ["--cert", certificate, "--key", key]
    words += ["--resume"] if resumes else []
    before = server.cpu_seconds()
    done = subprocess.run(
        [sys.executable, "-m", connections.__name__, *words],
        capture_output=True,
        text=True,
        timeout=given.seconds + 60,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"bench.security: connections failed:\n{done.stderr[-2000:]}")
    made, resumed = (int(word) for word in done.stdout.split())
    # The first of each process has nothing to resume.
    if resumed != (made - given.processes if resumes else 0):
        raise SystemExit(f"bench.security: {server.state.name}: {resumed} of {made} connections resumed a session")
    return {"rate": made / given.seconds, "cpu_us": (server.cpu_seconds() - before) / max(1, made) * 1e6}


def measure(
    found: dict[str, Any],
    setup: str,
    given: argparse.Namespace,
    place: Path,
    material: Material,
    save: Callable[[], None],
) -> None:
    states = [
        each
        for each in STATES
        if (each.name == PLAIN or not given.only or each.name in given.only)
        and (setup == "gateway" or each.name != GATEWAY_ONLY)
    ]
    script = write_script(place)
    with ExitStack() as stack:
        servers = [start(stack, setup, each, given, place, material) for each in states]
        for server in servers:
            check(server, material)
            load(server, material, "http", 8, OWN, given, script, 1.0)
        say(f"{setup}: {len(servers)} servers checked")
        found |= {"compiled": servers[0].compiled, "requests": {}}
        measure_requests(found["requests"], servers, given, material, script, save)
        if not given.no_connections:
            found["connections"] = measure_connections(servers, given, material)
    for server in servers:
        if server.state.audit:
            cells = found["requests"].values()
            check_audit(server, int(sum(each["requests"] for cell in cells for each in cell[server.state.name])))


def _median(figures: list[Figure], key: str) -> float:
    return statistics.median(each[key] for each in figures)


def show(setup: str, found: dict[str, Any]) -> None:
    print(f"\n{setup} ({'compiled' if found['compiled'] else 'interpreted'}), closed loop; medians of rounds")
    for cell, states in found["requests"].items():
        print(
            f"\n{cell:24} {'requests/s':>11} {'ratio':>6} {'[least–most]':>14} {'p50 µs':>8} {'ratio':>6} {'CPU µs':>7}"
        )
        for name, figures in states.items():
            ratios = [each["rate_ratio"] for each in figures]
            print(
                f"{name:24} {_median(figures, 'rate'):11,.0f} {statistics.median(ratios):6.3f}"
                f" {f'[{min(ratios):.3f}–{max(ratios):.3f}]':>14} {_median(figures, 'p50_us'):8,.0f}"
                f" {_median(figures, 'p50_us_ratio'):6.3f} {_median(figures, 'cpu_us'):7.1f}"
                f" ({_median(figures, 'cpu_extra_us'):+.1f})"
            )
    if "connections" in found:
        print(f"\n{'new connections':24} {'per second':>11} {'CPU µs':>8}")
        for name, figures in found["connections"].items():
            print(f"{name:24} {_median(figures, 'rate'):11,.0f} {_median(figures, 'cpu_us'):8.0f}")


def main() -> int:
    given = arguments()
    os.sched_setaffinity(0, given.generator_cores)
    results: dict[str, Any] = {"machine": describe(), "rounds": given.rounds, "seconds": given.seconds}
    results["generator"] = {"http": given.wrk or OWN, "grpc": OWN, "processes": given.processes}
    results["cores"] = {"front": given.front_cores, "workers": given.worker_cores, "rest": given.generator_cores}
    given.results.mkdir(parents=True, exist_ok=True)
    path = given.results / "security.json"

    def save() -> None:
        path.write_text(json.dumps(results, indent=1))

    # A run that is ended ends its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="bench-security-") as name, provider() as (issuer, key):
        place = Path(name)
        files = place / "models" / MODEL
        (files / "1").mkdir(parents=True)
        (files / "config.pbtxt").write_text(MODEL_CONFIG)
        material = Material(place, issuer, key)
        for setup in ("worker", "gateway") if given.setup == "both" else (given.setup,):
            results[setup] = {}
            try:
                measure(results[setup], setup, given, place, material, save)
            finally:
                # The rounds so far, too, of a run that is ended.
                save()
                if results[setup] and not given.json:
                    show(setup, results[setup])
    if given.json:
        print(json.dumps(results, indent=1))
    else:
        print(f"\ngenerator: {given.wrk or OWN} for HTTP, {OWN} for gRPC and client certificates; written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
