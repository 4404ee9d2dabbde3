"""`python -m bench.picker`: one picker on one core, and this process in Envoy's place on another.

Prints picks per second with a number of calls in flight, then how long a decision takes at a fixed rate (from when each
call was due), and what the picker uses of its core while idle. What it does not show: Envoy's own share of a request.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import uvloop

from bench.gateway.canned_upstream import MODEL, CannedApplication
from bench.picker.envoy_calls import Load, Messages, Taken
from bench.worker.machine import RESULTS, describe
from isochrone.wire.listening.listener import Listener


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.picker", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each part")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=5000.0, help="picks per second of the open loop")
    parser.add_argument("--in-flight", type=int, default=32, help="calls of the closed loop")
    parser.add_argument("--connections", type=int, default=2, help="as many as Envoy has threads")
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--policy", default="prequal")
    parser.add_argument("--timeout-ms", type=float, default=0.0, help="a deadline of each request; 0: none")
    parser.add_argument("--core", type=int, default=0, help="of the picker; -1: any")
    options = parser.parse_args()
    document = {"machine": describe(), "options": vars(options), "rounds": uvloop.run(_measure(options))}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "picker.json").write_text(json.dumps(document, indent=2))
    print(json.dumps(document["rounds"], indent=2))
    return int(any(each["failed"] for each in document["rounds"]))


def _start(options: argparse.Namespace, ports: list[int]) -> "subprocess.Popen[bytes]":
    command = [
        str(Path(sys.executable).with_name("isochrone")),
        *("pick", "--listen", "127.0.0.1:0", "--health-port", "-1", "--metrics-port", "-1", "--log-json"),
        *("--policy", options.policy, *(word for port in ports for word in ("--upstream", f"127.0.0.1:{port}"))),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


async def _measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    listeners = [Listener(CannedApplication()) for _ in range(options.workers)]
    ports = [await listener.start("127.0.0.1", 0) for listener in listeners]
    cores = os.sched_getaffinity(0)
    own = cores - {options.core} if options.core >= 0 and len(cores) > 1 else cores
    os.sched_setaffinity(0, own)
    process = _start(options, ports)
    try:
        if options.core >= 0:
            os.sched_setaffinity(process.pid, {options.core})
        port = await asyncio.to_thread(_ready, process)
        # Of all workers, not only of the first.
        await asyncio.sleep(1)
        load = Load(port, options.connections, Messages(MODEL, options.timeout_ms))
        await load.connect()
        await load.closed(options.in_flight, 1.0)
        rounds = [await _round(load, process.pid, options) for _ in range(options.rounds)]
        load.close()
        return rounds
    finally:
        process.terminate()
        process.wait()
        for listener in listeners:
            await listener.stop(0)


def _ready(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event.get("event") == "ready":
            return int(event["picker"])
    raise SystemExit("the picker did not start")


async def _round(load: Load, pid: int, options: argparse.Namespace) -> dict[str, Any]:
    picker = psutil.Process(pid)
    closed, closed_cpu = await _with_cpu(picker, load.closed(options.in_flight, options.seconds))
    paced, paced_cpu = await _with_cpu(picker, load.at_rate(options.rate, options.seconds))
    _, idle_cpu = await _with_cpu(picker, asyncio.sleep(2))
    return {
        "picks_per_second": round(closed.ended / options.seconds),
        "closed_us": _quantiles(closed),
        "closed_cpu": closed_cpu,
        "rate": options.rate,
        "paced_us": _quantiles(paced),
        "paced_cpu": paced_cpu,
        "idle_cpu": idle_cpu,
        "failed": dict(closed.failures + paced.failures),
    }


async def _with_cpu(picker: psutil.Process, work: Any) -> tuple[Any, dict[str, float]]:
    """The result, and the shares of a core that the picker and this process used."""
    before, own_before, began = picker.cpu_times(), time.process_time(), time.monotonic()
    result = await work
    seconds = time.monotonic() - began
    after = picker.cpu_times()
    used = after.user + after.system - before.user - before.system
    return result, {
        "picker": round(used / seconds, 3),
        "generator": round((time.process_time() - own_before) / seconds, 3),
    }


def _quantiles(taken: Taken) -> dict[str, float]:
    ordered = sorted(taken.decisions_ns)
    if not ordered:
        return {}
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {name: round(ordered[int(share * (len(ordered) - 1))] / 1000, 1) for name, share in shares.items()}


if __name__ == "__main__":
    sys.exit(main())
