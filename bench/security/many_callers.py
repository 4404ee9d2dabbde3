"""`python -m bench.security.many_callers`: requests of thousands of callers, each with an API token of its own.

A worker, and a gateway before another worker, both with an access file that names every caller. In turns, round by
round, wrk sends requests with the tokens of 1, of 1,000 and of 5,000 callers, one after the other, over the same
connections: every request has another head than the one before. Each begins with two passes over its callers that are
not measured. Figures: requests/s, and µs of CPU time per request of each process. Needs wrk. See bench/README.md.
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

from bench.observe_cost import HOST, MODEL, MODEL_CONFIG, WIDTH, cores_of, cpu_seconds, found_in, say, started
from bench.ports import free_ports
from bench.worker.machine import RESULTS, describe
from isochrone.secure.access.tokens import digest_of, new_token

# wrk would write the fields of each of its runs in another order.
_SCRIPT = """
local body = io.open("%(body)s", "rb"):read("*a")
local requests, next = {}, 0
function init(arguments)
  local tokens = io.lines("%(tokens)s")
  for number = 1, %(callers)d do
    requests[number] = "POST /v2/models/%(model)s/infer HTTP/1.1\\r\\nHost: localhost\\r\\n"
      .. "Content-Type: application/octet-stream\\r\\nContent-Length: " .. #body
      .. "\\r\\nInference-Header-Content-Length: %(json)d\\r\\nAuthorization: Bearer " .. tokens()
      .. "\\r\\n\\r\\n" .. body
  end
end
function request()
  next = next %% %(callers)d + 1
  return requests[next]
end
"""


@dataclass
class Server:
    """A worker, or a gateway and its worker."""

    name: str
    port: int
    processes: list[subprocess.Popen[bytes]]
    compiled: bool
    #: By number of callers.
    rates: dict[int, list[float]] = field(default_factory=dict)
    cpu_us: dict[int, list[list[float]]] = field(default_factory=dict)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.security.many_callers", description=__doc__)
    parser.add_argument("--callers", type=int, action="append", metavar="N", help="(default: 1, 1000 and 5000)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one figure")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--short", action="store_true", help="one round of one second, with at most 100 callers")
    parser.add_argument("--wrk", default="wrk", help="path of wrk")
    parser.add_argument("--front-cores", type=cores_of, help="of the process that is loaded")
    parser.add_argument("--worker-cores", type=cores_of, help="of the worker behind the gateway")
    parser.add_argument("--generator-cores", type=cores_of)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.callers = given.callers or [1, 1000, 5000]
    if given.short:
        given.rounds, given.seconds = 1, 1.0
        given.callers = sorted({min(100, each) for each in given.callers})
    cores = sorted(os.sched_getaffinity(0))
    given.front_cores = given.front_cores or cores[:1]
    given.worker_cores = given.worker_cores or cores[1:2] or cores
    given.generator_cores = given.generator_cores or cores[2:] or cores
    return given


def write_files(place: Path, callers: list[int]) -> dict[int, Path]:
    """Models, tokens and access rules; by number of callers, wrk's script."""
    files = place / "models" / MODEL
    (files / "1").mkdir(parents=True)
    (files / "config.pbtxt").write_text(MODEL_CONFIG)
    tokens = [new_token() for _ in range(max(callers))]
    (place / "tokens").write_text("\n".join(tokens) + "\n")
    names = [f"caller-{number}" for number in range(len(tokens))]
    digests = "".join(f"  {name}: {{sha256: {digest_of(token)}}}\n" for name, token in zip(names, tokens, strict=True))
    subjects = ", ".join(f'"token:{name}"' for name in names)
    (place / "access.yaml").write_text(f"tokens:\n{digests}assign:\n- to: [{subjects}]\n  roles: [caller]\n")
    shape = {"name": "INPUT0", "shape": [WIDTH], "datatype": "FP32", "parameters": {"binary_data_size": 4 * WIDTH}}
    outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
    head = json.dumps({"id": "request", "inputs": [shape], "outputs": outputs}).encode()
    (place / "body").write_bytes(head + bytes(4 * WIDTH))
    scripts = {}
    for count in callers:
        words = {"body": place / "body", "tokens": place / "tokens", "callers": count, "model": MODEL}
        scripts[count] = place / f"{count}.lua"
        scripts[count].write_text(_SCRIPT % (words | {"json": len(head)}))
    return scripts


def start(stack: ExitStack, given: argparse.Namespace, place: Path) -> list[Server]:
    def worker(name: str, cores: list[int], flags: list[str]) -> tuple[subprocess.Popen[bytes], Any]:
        words = ["serve", str(place / "models"), "--host", HOST, "--http-port", "0", "--grpc-port", "0"]
        return stack.enter_context(started([*words, "--metrics-port", "0", *flags], cores, place / f"{name}.log"))

    access = ["--access", str(place / "access.yaml")]
    alone, ready = worker("worker", given.front_cores, access)
    servers = [Server("worker", ready["http"], [alone], ready["compiled"])]
    behind, ready = worker("behind", given.worker_cores, [])
    (port,) = free_ports(1)
    words = ["gateway", "--listen", f"{HOST}:{port}", "--metrics-port", "0", "--upstream", f"{HOST}:{ready['http']}"]
    gateway, ready = stack.enter_context(started([*words, *access], given.front_cores, place / "gateway.log"))
    return [*servers, Server("gateway", port, [gateway, behind], ready["compiled"])]


def measure(server: Server, callers: int, script: Path, given: argparse.Namespace) -> None:
    rate = load(server, script, given, 1.0)
    while rate < 2 * callers:
        rate += load(server, script, given, 1.0)
    before = [cpu_seconds(each.pid) for each in server.processes]
    rate = load(server, script, given, given.seconds)
    used = [cpu_seconds(each.pid) - then for each, then in zip(server.processes, before, strict=True)]
    server.rates.setdefault(callers, []).append(rate)
    server.cpu_us.setdefault(callers, []).append([each / (rate * given.seconds) * 1e6 for each in used])


def load(server: Server, script: Path, given: argparse.Namespace, seconds: float) -> float:
    """Requests per second."""
    words = [given.wrk, "-t1", f"-c{given.connections}", f"-d{seconds:g}s", "-s", str(script)]
    done = subprocess.run([*words, f"http://{HOST}:{server.port}"], capture_output=True, text=True, check=False)
    if done.returncode or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise SystemExit(f"bench.security.many_callers: requests failed:\n{done.stdout}{done.stderr}")
    return float(found_in(r"Requests/sec:\s+([\d.]+)", done.stdout))


def show(servers: list[Server]) -> None:
    print(f"{'':10} {'callers':>8} {'requests/s':>11} {'ratio':>6} {'[least–most]':>14}   CPU µs of each process")
    for server in servers:
        first = next(iter(server.rates))
        for callers, rates in server.rates.items():
            ratios = [rate / base for rate, base in zip(rates, server.rates[first], strict=True)]
            cpu = " ".join(f"{statistics.median(each):6.1f}" for each in zip(*server.cpu_us[callers], strict=True))
            print(
                f"{server.name:10} {callers:8,} {statistics.median(rates):11,.0f} {statistics.median(ratios):6.3f}"
                f" {f'[{min(ratios):.3f}–{max(ratios):.3f}]':>14}   {cpu}"
            )


def main() -> int:
    given = arguments()
    os.sched_setaffinity(0, given.generator_cores)
    with tempfile.TemporaryDirectory(prefix="many-callers-") as name, ExitStack() as stack:
        place = Path(name)
        scripts = write_files(place, given.callers)
        servers = start(stack, given, place)
        for number in range(given.rounds):
            for server in servers:
                for callers in given.callers:
                    measure(server, callers, scripts[callers], given)
            say(f"round {number + 1} of {given.rounds}")
    show(servers)
    figures = {each.name: {"rates": each.rates, "cpu_us": each.cpu_us} for each in servers}
    given.results.mkdir(parents=True, exist_ok=True)
    path = given.results / "many_callers.json"
    path.write_text(json.dumps({"machine": describe(), "compiled": servers[0].compiled, "servers": figures}, indent=1))
    print(f"{'compiled' if servers[0].compiled else 'interpreted'}; written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
