"""`python -m bench.security.audit_cost`: what an audit log of every request costs a gateway, at a given rate.

Two gateways before the same workers, one with `--audit --audit-requests --audit-key`, run all the time, on the same
core. In turns, round by round, `isochrone bench` sends requests in an open loop (10,000 a second unless told otherwise)
to one and to the other, with ids and agents; who comes first changes. Figures: the rate that was reached, latencies,
and the CPU time of the gateway's process per request, the thread that writes the log included. Where this machine does
not reach the rate, that is said, with the rate that one core of the gateway carries by that CPU time: the threads of
the loop and of the log share the interpreter's lock. At the end the log is verified, and must have one record for each
answered request: requests that are not on record cost nothing. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.observe_cost import AGENT_HEADER, HOST, MODEL, cores_of, say, started
from bench.ports import free_ports
from bench.worker.machine import RESULTS, describe
from isochrone.secure.audit.keys import read_key
from isochrone.secure.audit.reading import merged
from isochrone.secure.audit.verification import verify

_CONFIG = f"""
name: "{MODEL}"
backend: "identity"
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [64] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [64] }}
"""
_OFF, _ON = "without", "with audit log"
#: Of the rate that was asked for: a Poisson process does not keep it exactly.
_REACHED = 0.98


@dataclass
class Gateway:
    """One of the two."""

    name: str
    url: str
    pid: int
    compiled: bool
    answered: int = 0
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.security.audit_cost", description=__doc__)
    parser.add_argument("--rate", type=float, default=10_000.0, help="requests per second")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one figure")
    parser.add_argument("--short", action="store_true", help="one round of two seconds")
    parser.add_argument("--redact", default="", help="as of --audit-redact")
    parser.add_argument("--directory", type=Path, help="of the log, to name a disk (default: a temporary one)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--processes", type=int, help="of the generator (default: one per core, up to 4)")
    parser.add_argument("--gateway-cores", type=cores_of)
    parser.add_argument("--worker-cores", type=cores_of)
    parser.add_argument("--generator-cores", type=cores_of)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.short:
        given.rounds, given.seconds = 1, 2.0
    cores = sorted(os.sched_getaffinity(0))
    given.gateway_cores = given.gateway_cores or cores[:1]
    given.worker_cores = given.worker_cores or cores[1:3] or cores
    given.generator_cores = given.generator_cores or cores[3:] or cores
    given.processes = given.processes or min(4, len(given.generator_cores))
    return given


def start(stack: ExitStack, name: str, upstreams: list[str], flags: list[str], given: Any, place: Path) -> Gateway:
    (port,) = free_ports(1)
    words = ["gateway", "--listen", f"{HOST}:{port}", "--metrics-port", "-1", "--probe-interval", "1", *flags]
    words += [word for upstream in upstreams for word in ("--upstream", upstream)]
    log = place / f"{name.replace(' ', '-')}.log"
    process, ready = stack.enter_context(started(words, given.gateway_cores, log))
    return Gateway(name, f"http://{HOST}:{port}", process.pid, ready["compiled"])


def load(gateway: Gateway, given: Any, seconds: float, *, counts: bool = True) -> None:
    before = gateway.cpu_seconds()
    words = ["bench", gateway.url, "--model", MODEL, "--rate", f"{given.rate:g}", "--seconds", f"{seconds:g}"]
    words += ["--warmup-seconds", "0", "--json", "--header", f"{AGENT_HEADER}: agent-1"]
    words += ["--processes", str(given.processes)]
    done = subprocess.run(
        [sys.executable, "-m", "isochrone", *words], capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    if done.returncode:
        raise SystemExit(f"bench.security.audit_cost: {' '.join(words)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    summary = json.loads(done.stdout)
    total = summary["total"]
    if summary["errors"]:
        raise SystemExit(f"bench.security.audit_cost: requests failed; ask for a lower --rate: {summary['errors']}")
    requests = round(float(total["rate"]) * seconds)
    gateway.answered += requests
    if counts:
        gateway.rates.append(float(total["rate"]))
        gateway.cpu_us.append((gateway.cpu_seconds() - before) / max(1, requests) * 1e6)
        gateway.p50_ms.append(float(total["latency_ms"]["p50"]["value"]))
        gateway.p99_ms.append(float(total["latency_ms"]["p99"]["value"]))


def check(log: Path, key: Path, answered: int) -> dict[str, int]:
    """The log is whole, and has every request."""
    verdict = verify(log, read_key(str(key)))
    recorded = sum(record.action == "infer" for _, record in merged([log]))
    size = sum(path.stat().st_size for path in log.glob("segment-*"))
    if not verdict.is_intact or recorded < answered * 0.99:
        found = f"{recorded} records of {answered} requests; {verdict.findings[:3]}"
        raise SystemExit(f"bench.security.audit_cost: {found}")
    return {"records": recorded, "answered": answered, "bytes": size}


def show(gateways: list[Gateway], found: dict[str, int], rate: float) -> None:
    print(f"{'':16} {'requests/s':>11} {'CPU µs':>8} {'p50 ms':>8} {'p99 ms':>8}   (medians of rounds)")
    for each in gateways:
        figures = [statistics.median(values) for values in (each.rates, each.cpu_us, each.p50_ms, each.p99_ms)]
        print(f"{each.name:16} {figures[0]:11,.0f} {figures[1]:8.2f} {figures[2]:8.3f} {figures[3]:8.3f}")
    off, on = gateways
    extra = [more - less for more, less in zip(on.cpu_us, off.cpu_us, strict=True)]
    print(f"one record: {statistics.median(extra):.1f} µs of CPU [{min(extra):.1f}–{max(extra):.1f}], ", end="")
    print(f"{found['bytes'] / max(1, found['records']):.0f} bytes; {found['records']:,} records verified")
    reached, cpu = statistics.median(on.rates), statistics.median(on.cpu_us)
    verdict = "carried" if reached >= _REACHED * rate else "not carried by generator, gateway or workers here"
    print(f"{rate:,.0f} audited requests/s: {verdict}; ", end="")
    print(f"{reached:,.0f}/s used {reached * cpu / 1e6:.2f} cores of the gateway")
    print(f"by this CPU time, one core carries {1e6 / cpu:,.0f} audited requests/s, ", end="")
    print(f"{1e6 / statistics.median(off.cpu_us):,.0f} without")


def main() -> int:
    given = arguments()
    os.sched_setaffinity(0, given.generator_cores)
    with tempfile.TemporaryDirectory(prefix="audit-cost-", dir=given.directory) as name:
        place = Path(name)
        files = place / "models" / MODEL
        (files / "1").mkdir(parents=True)
        (files / "config.pbtxt").write_text(_CONFIG)
        key = place / "audit.key"
        key.write_text("0123456789abcdef0123456789abcdef")
        flags = ["--audit", str(place / "audit"), "--audit-requests", "--audit-key", str(key), "--name", "gw"]
        flags += ["--audit-redact", given.redact] if given.redact else []
        with ExitStack() as stack:
            upstreams = []
            for number in range(given.workers):
                words = ["serve", str(place / "models"), "--host", HOST, "--http-port", "0", "--grpc-port", "0"]
                core = [given.worker_cores[number % len(given.worker_cores)]]
                _, ready = stack.enter_context(started([*words, "--metrics-port", "0"], core, place / f"w{number}.log"))
                upstreams.append(f"{HOST}:{ready['http']}")
            gateways = [
                start(stack, _OFF, upstreams, [], given, place),
                start(stack, _ON, upstreams, flags, given, place),
            ]
            for gateway in gateways:
                load(gateway, given, 1.0, counts=False)
            for number in range(given.rounds):
                for gateway in gateways if number % 2 else reversed(gateways):
                    load(gateway, given, given.seconds)
                say(f"round {number + 1} of {given.rounds}")
        found = check(place / "audit" / "gw", key, gateways[1].answered)
    show(gateways, found, given.rate)
    results = {
        "machine": describe(),
        "rate": given.rate,
        "seconds": given.seconds,
        "redact": given.redact,
        "compiled": gateways[0].compiled,
        "log": found,
        "gateways": {
            each.name: {"rates": each.rates, "cpu_us": each.cpu_us, "p50_ms": each.p50_ms, "p99_ms": each.p99_ms}
            for each in gateways
        },
    }
    given.results.mkdir(parents=True, exist_ok=True)
    path = given.results / "audit_cost.json"
    path.write_text(json.dumps(results, indent=1))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
