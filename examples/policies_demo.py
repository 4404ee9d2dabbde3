"""``make demo-policies``: routing policies with a gateway and three workers, one of them slow; then a worker is killed.

Every server is its own process on free ports. On a terminal the demo serves until Ctrl-C; elsewhere it stops the
servers, checks their exit codes, and exits with 0, or with 1 if a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import re
import signal
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import demo_tables
import numpy as np
import planner
import uvloop
from closed_loop import Requests, Tally, drive, encode, repeated, sequences
from open_loop import OpenLoop
from processes import DemoFailed, Server, Servers
from rich.console import Console

from isochrone.cli.requests.waterfall import render, stages_of
from isochrone.protocol.headers.timing import parse_server_timing

HERE = Path(__file__).resolve().parent
#: Connections of each sample model, all at once.
CONNECTIONS = {"detector": 8, "preprocess": 4, "pipeline": 4, "tracker": 4}
#: The last policy serves for the rest of the demo.
POLICIES = ("round_robin", "least_connections", "power_of_two", "prequal")
#: The planner's service time, and the slow worker's. A third of the load keeps the slow worker's four instances busy
#: for half of the time: it is slow, not overloaded.
QUICK_MS, SLOW_MS = 3.0, 24.0
REQUESTS_PER_SECOND = 240.0

console = Console(highlight=False)


def say(text: str = "") -> None:
    console.print(text, soft_wrap=True)


def load_plan(models: list[str]) -> tuple[list[tuple[Requests, Tally]], list[Tally]]:
    """The requests that every connection sends to the sample models."""
    random = np.random.default_rng(1)
    pixels = random.integers(0, 256, (1, 64)).astype(np.uint8)
    features = random.standard_normal((1, 64), np.float32)
    fixed = {
        "detector": encode("detector", "features", "FP32", features, {}),
        "preprocess": encode("preprocess", "pixels", "UINT8", pixels, {}),
        "pipeline": encode("pipeline", "pixels", "UINT8", pixels, {}),
    }
    plan: list[tuple[Requests, Tally]] = []
    tallies: list[Tally] = []
    for model in models:
        tally = Tally(model)
        tallies.append(tally)
        for index in range(CONNECTIONS[model]):
            if model == "tracker":
                plan.append((sequences(model, "measured", 16, index + 1, CONNECTIONS[model]), tally))
            else:
                plan.append((repeated(fixed[model]), tally))
    return plan, tallies


def check(tallies: list[Tally]) -> None:
    for tally in tallies:
        if tally.failures:
            raise DemoFailed(f"{tally.failures} requests to {tally.model} failed; the first: {tally.first_failure}")
        if not tally.milliseconds:
            raise DemoFailed(f"no request to {tally.model} was answered; is the machine overloaded?")


def ask(port: int, path: str, headers: dict[str, str] | None = None) -> str:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            raise DemoFailed(f"GET {path} was answered {response.status}: {text}")
        return text


def planned_by(gateway: Server) -> dict[str, int]:
    """Planner runs of each worker so far, by the gateway's statistics."""
    told = json.loads(ask(gateway.ports["gateway"], "/v2/models/planner/stats", {"x-isochrone-per-worker": "1"}))
    return {worker: int(page["model_stats"][0]["inference_count"]) for worker, page in told["workers"].items()}


def try_policy(gateway: Server, policy: str, slow: Server, seconds: float) -> demo_tables.Outcome:
    state = np.zeros((1, planner.WIDTH), np.float32)
    tally = Tally(planner.MODEL)
    before = planned_by(gateway)
    request = encode(planner.MODEL, "state", "FP32", state, {})
    uvloop.run(OpenLoop(gateway.ports["gateway"], request, tally).run(REQUESTS_PER_SECOND, seconds))
    runs = {worker: count - before[worker] for worker, count in planned_by(gateway).items()}
    return demo_tables.Outcome(policy, tally, runs[slow.address] / max(1, sum(runs.values())))


def compare_policies(servers: Servers, workers: list[Server], seconds: float) -> Server:
    """Run one gateway for each policy in turn; return the last one."""
    outcomes = []
    for index, policy in enumerate(POLICIES):
        say(f"{seconds:g} s by {policy}")
        gateway = servers.gateway(policy, workers)
        outcomes.append(try_policy(gateway, policy, workers[-1], seconds))
        if index < len(POLICIES) - 1:
            servers.end([gateway])
    say()
    console.print(
        demo_tables.policies(outcomes, f"planner at {REQUESTS_PER_SECOND:g} requests/s, one of three workers slow")
    )
    check([outcome.tally for outcome in outcomes])
    return gateway


def show_throughput(gateway: Server, seconds: float) -> None:
    plan, tallies = load_plan(list(CONNECTIONS))
    say(f"\n{seconds:g} s of the sample models by prequal")
    began = time.monotonic()
    uvloop.run(drive(gateway.ports["gateway"], plan, seconds))
    elapsed = time.monotonic() - began
    check(tallies)
    say()
    console.print(demo_tables.models(tallies, CONNECTIONS, elapsed))


def retries(gateway: Server) -> int:
    page = ask(gateway.ports["metrics"], "/metrics")
    return sum(int(float(count)) for count in re.findall(r"^isochrone_gateway_retries_total\S* (\S+)$", page, re.M))


def kill_under_load(gateway: Server, victim: Server, seconds: float) -> None:
    """Without sequences: their state is lost with their worker."""
    plan, tallies = load_plan([model for model in CONNECTIONS if model != "tracker"])
    say(f"\n{seconds:g} s of load, kill -9 of worker {victim.address} in the middle of it")
    before = retries(gateway)

    async def load() -> None:
        asyncio.get_running_loop().call_later(seconds / 2, victim.kill)
        await drive(gateway.ports["gateway"], plan, seconds)

    uvloop.run(load())
    answered = sum(len(tally.milliseconds) for tally in tallies)
    failed = sum(tally.failures for tally in tallies)
    slowest = max(max(tally.milliseconds, default=0.0) for tally in tallies)
    again = retries(gateway) - before
    say(f"{answered:,} answered, {failed} failed, {again} sent again elsewhere, the slowest took {slowest:.1f} ms")
    check(tallies)


def show_waterfall(gateway: Server) -> None:
    """The median of some requests that ask for their timing, without other load."""
    features = np.random.default_rng(2).standard_normal((1, 64), np.float32)
    request = encode("detector", "features", "FP32", features, {}, extra="x-isochrone-timing: 1\r\n")
    tally = Tally("detector", heads=[])
    for _ in range(5):
        uvloop.run(drive(gateway.ports["gateway"], [(iter([request] * 40), tally)], 5))
    check([tally])
    answers = sorted(zip(tally.milliseconds, tally.heads or [], strict=True))
    total, head = answers[len(answers) // 2]
    stages = stages_of(total, parse_server_timing(head.lower().partition(b"server-timing:")[2].partition(b"\r\n")[0]))
    say()
    console.print(render(total, stages, "stages of one request (detector, alone, through the gateway)"))


def say_where(gateway: Server) -> None:
    http_url = f"http://{gateway.address}"
    say("\nThe two remaining workers still serve; Ctrl-C stops them. Try:")
    say(f"  isochrone infer detector --url {http_url}")
    say(f"  isochrone infer pipeline --url grpc://{gateway.address} --batch 8 --repeat 100")
    say(f"  curl -i {http_url}/v2/models/detector -H 'x-isochrone-explain: 1'")
    say(f"  curl {http_url}/v2/models/stats -H 'x-isochrone-per-worker: 1'")
    say(f"  curl http://127.0.0.1:{gateway.ports['metrics']}/metrics")


def run(models: Path, seconds: float, stay: bool) -> None:
    if not (models / "detector" / "config.pbtxt").is_file():
        raise DemoFailed(f"no sample models in {models}; write them with: python examples/build_models.py")
    with tempfile.TemporaryDirectory(prefix="isochrone-demo-") as name, Servers(Path(name)) as servers:
        try:
            folder = Path(name)
            quick = planner.write_planner(folder / "quick", QUICK_MS)
            slow = planner.write_planner(folder / "slow", SLOW_MS)
            say(f"three workers start: {models}, and a planner of {QUICK_MS:g} ms; {SLOW_MS:g} ms on the third")
            workers = [servers.worker("worker", models, planners) for planners in (quick, quick, slow)]
            for worker in workers:
                worker.wait_until_ready()
            say(f"ready: {', '.join(worker.address for worker in workers)}\n")
            gateway = compare_policies(servers, workers, seconds)
            show_throughput(gateway, seconds)
            kill_under_load(gateway, workers[0], seconds)
            show_waterfall(gateway)
            if stay:
                say_where(gateway)
                gateway.process.wait()
        except KeyboardInterrupt:
            say("\nstopping")


def _ended(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description="A gateway and three workers under load; prints figures.")
    parser.add_argument("--models", type=Path, default=HERE / "models", help="model repository (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each load lasts (default: %(default)g)")
    arguments = parser.parse_args()
    # Signals that end the demo must also stop the servers.
    # A shell that starts the demo in the background ignores Ctrl-C; on a terminal it must still end the demo.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended)
    try:
        run(arguments.models, arguments.seconds, stay=sys.stdout.isatty() and sys.stdin.isatty())
    except (DemoFailed, OSError) as error:
        sys.exit(f"demo: {error}")


if __name__ == "__main__":
    main()
