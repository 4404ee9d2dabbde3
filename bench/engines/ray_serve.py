"""``python -m bench.engines.ray_serve``: the same model through Ray Serve and through us, on the same Ray cluster.

Two modes of Ray Serve: its default, and its fastest (HAProxy in front, RAY_SERVE_ENABLE_HA_PROXY=1 and
RAY_SERVE_THROUGHPUT_OPTIMIZED=1). Serve reads them when its actors start, so each mode has its cluster; ours runs on
both. Within a round the two are measured in turn, and the ratio is taken round by round. A request is JSON with 64
floats and an id of its own; the model is Python code that doubles them. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import yaml

from bench.engines.ray_cluster import RayNodes, loopback_places
from bench.ports import free_ports
from bench.worker.load import LoadFailed, duration_us, first_group, run_tool
from bench.worker.machine import RESULTS, describe
from bench.worker.peers.process import PEERS, PeerUnavailable, scratch

MODES: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "fast": {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"},
}
_READY_SECONDS = 120.0
_VALUES = [float(number) for number in range(64)]
_MODEL = """import numpy as np


class Model:
    def infer(self, inputs):
        return {"Y": inputs["X"] * 2}
"""
_CONFIG = """name: "double"
backend: "python"
max_batch_size: 0
input [{ name: "X", data_type: TYPE_FP32, dims: [ 64 ] }]
output [{ name: "Y", data_type: TYPE_FP32, dims: [ 64 ] }]
"""
#: Every request has an id of its own.
_SCRIPT = """local number = 0
local headers = {["Content-Type"] = "application/json"}
request = function()
  number = number + 1
  return wrk.format("POST", "%(path)s", headers, '{"id": "agent-7-' .. number .. '", %(rest)s}')
end
"""


@dataclass(frozen=True)
class Target:
    """A server under load."""

    url: str
    path: str
    #: The body after its id, without braces.
    rest: str


@dataclass(frozen=True)
class Cell:
    """One server in one round."""

    requests_per_second: float
    median_us: float
    p99_us: float


def load(target: Target, in_flight: int, seconds: int, directory: Path) -> Cell:
    script = directory / "load.lua"
    script.write_text(_SCRIPT % {"path": target.path, "rest": target.rest})
    command = ["wrk", "-t1", f"-c{in_flight}", f"-d{seconds}s", "--timeout", "30s", "--latency", "-s", str(script)]
    output = run_tool([*command, f"{target.url}{target.path}"], 60 + 2 * seconds)
    if problem := re.search(r"Non-2xx.*|Socket errors:.*", output):
        raise LoadFailed(f"wrk: {problem[0].strip()}")
    return Cell(
        float(first_group(r"Requests/sec:\s+([\d.]+)", output)),
        duration_us(first_group(r"(?m)^\s+50%\s+(\S+)$", output)),
        duration_us(first_group(r"(?m)^\s+99%\s+(\S+)$", output)),
    )


def verify(target: Target, values: str) -> None:
    """The answer is the doubled input, under the id of the request."""
    body = httpx.post(
        f"{target.url}{target.path}", content=f'{{"id": "a", {target.rest}}}', timeout=10.0, trust_env=False
    ).json()
    answer = body["outputs"][0]["data"] if values == "data" else body["values"]
    if answer != [2 * value for value in _VALUES] or body["id"] != "a":
        raise LoadFailed(f"{target.url}: a wrong answer: {body}")


@contextmanager
def serving_environment(directory: Path) -> Iterator[str]:
    """A directory for PYTHONPATH that adds Serve's dependencies after our own packages: one cluster, two servers."""
    (site,) = (PEERS / "ray" / "lib").glob("python*/site-packages") if (PEERS / "ray").exists() else (None,)
    if site is None:
        raise PeerUnavailable("Ray Serve is not installed: make peers")
    path = directory / "serve-path"
    path.mkdir(exist_ok=True)
    (path / "sitecustomize.py").write_text(f"import sys\n\nsys.path.append({str(site)!r})\n")
    yield str(path)


@contextmanager
def ray_serve(cluster: RayNodes, directory: Path) -> Iterator[Target]:
    (port,) = free_ports(1)
    ready = directory / "serve-ready"
    ready.unlink(missing_ok=True)
    words = [sys.executable, str(Path(__file__).with_name("serve_identity.py")), cluster.address, str(port), str(ready)]
    with _running(words, cluster.environment, directory / "serve.log") as process:
        _wait(ready.exists, process, directory / "serve.log")
        yield Target(f"http://127.0.0.1:{port}", "/double", f'"values": {json.dumps(_VALUES)}')


@contextmanager
def isochrone(cluster: RayNodes, directory: Path) -> Iterator[Target]:
    """One gateway before one worker, as Serve has one proxy before one replica."""
    control, gateway = free_ports(2)
    shutil.rmtree(directory / "ours", ignore_errors=True)
    model = directory / "ours" / "models" / "double"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(_CONFIG)
    (model / "1" / "model.py").write_text(_MODEL)
    document = {
        "name": "race",
        "control": {"listen": f"127.0.0.1:{control}", "cpus": 0.1},
        "gateways": {"gw": {"listen": f"127.0.0.1:{gateway}", "metrics_port": 0}},
        "pools": {"cpu": {"workers": 1}},
    }
    file = directory / "ours" / "fleet.yaml"
    file.write_text(yaml.safe_dump(document))
    log = directory / "ours.log"
    words = [sys.executable, "-m", "isochrone", "up", str(file), "--engine", "ray", "--address", cluster.address]
    environment = {**cluster.environment, "XDG_STATE_HOME": str(directory / "xdg")}
    with _running(words, environment, log) as process:
        _wait(lambda: b"is up:" in log.read_bytes(), process, log)
        tensor = {"name": "X", "datatype": "FP32", "shape": [64], "data": _VALUES}
        yield Target(f"http://127.0.0.1:{gateway}", "/v2/models/double/infer", f'"inputs": [{json.dumps(tensor)}]')


def measure(mode: str, in_flight: Sequence[int], seconds: int, directory: Path) -> dict[int, dict[str, Cell]]:
    """One round: both servers on one cluster, in turn."""
    found: dict[int, dict[str, Cell]] = {}
    with ExitStack() as stack:
        path = stack.enter_context(serving_environment(directory))
        cluster = RayNodes(loopback_places(1), environment=MODES[mode])
        cluster.environment["PYTHONPATH"] += os.pathsep + path
        stack.enter_context(cluster)
        targets = {
            "isochrone": stack.enter_context(isochrone(cluster, directory)),
            "ray_serve": stack.enter_context(ray_serve(cluster, directory)),
        }
        verify(targets["isochrone"], "data")
        verify(targets["ray_serve"], "values")
        for count in in_flight:
            found[count] = {}
            for name in ("ray_serve", "isochrone"):
                load(targets[name], count, 1, directory)
                found[count][name] = load(targets[name], count, seconds, directory)
                say(f"{mode}, {count} in flight, {name}: {found[count][name]}")
    return found


def report(rounds: Mapping[str, Sequence[Mapping[int, Mapping[str, Cell]]]]) -> str:
    lines = ["| Serve's mode | in flight | requests/s, ours : Serve | median, ours : Serve | ours | Serve |"]
    lines.append("|---|---|---|---|---|---|")
    for mode, measured in rounds.items():
        for count in measured[0]:
            pairs = [(each[count]["isochrone"], each[count]["ray_serve"]) for each in measured]
            rates = [ours.requests_per_second / theirs.requests_per_second for ours, theirs in pairs]
            medians = [ours.median_us / theirs.median_us for ours, theirs in pairs]
            shown = [
                f"{statistics.median(each[index].requests_per_second for each in pairs):,.0f}/s, "
                f"{statistics.median(each[index].median_us for each in pairs) / 1e3:.2f} ms"
                for index in (0, 1)
            ]
            lines.append(f"| {mode} | {count} | {_spread(rates)} | {_spread(medians)} | {shown[0]} | {shown[1]} |")
    return "\n".join(lines)


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _running(words: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=dict(environment)
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(holds: object, process: subprocess.Popen[bytes], log: Path) -> None:
    assert callable(holds)
    ends = time.monotonic() + _READY_SECONDS
    while not holds():
        if process.poll() is not None or time.monotonic() > ends:
            raise PeerUnavailable(f"not ready:\n{log.read_text(errors='replace')[-1500:]}")
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5, help="of each measurement")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--mode", action="append", choices=list(MODES), help="may be repeated; default: all")
    given = parser.parse_args()
    modes = given.mode or list(MODES)
    rounds: dict[str, list[dict[int, dict[str, Cell]]]] = {mode: [] for mode in modes}
    with scratch("ray-serve") as directory:
        for _ in range(given.rounds):
            for mode in modes:
                rounds[mode].append(measure(mode, given.in_flight, given.seconds, directory))
    RESULTS.mkdir(exist_ok=True)
    result = {"machine": describe(), "rounds": rounds}
    (RESULTS / "ray_serve.json").write_text(json.dumps(result, indent=1, default=asdict))
    print(report(rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
