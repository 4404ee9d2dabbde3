"""`python -m bench.observe_cost`: what metrics, the recorder, traces and the access log cost, in requests per second.

The same worker, and a gateway before workers, once for each setting; all of them run all the time, on the same cores.
In turns, round by round, wrk loads one after the other in a closed loop; every round begins and ends with everything
off, and its figures are ratios to the mean of those two. Requests have ids and agents. `tracing off` names what a
server costs that could be traced and is not; a gateway has no such state, and there the row shows the noise of the
method: two servers with the same settings. Without wrk, `isochrone bench` is the generator: its requests all carry the
same agent. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.ports import free_ports
from bench.worker.machine import RESULTS, describe

HOST = "127.0.0.1"
MODEL = "same"
WIDTH = 64
AGENTS = 50
#: Different requests, sent in turn.
REQUESTS = 1000
AGENT_HEADER = "x-agent-id"
OFF = "everything off"
MODEL_CONFIG = f"""
name: "{MODEL}"
backend: "identity"
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [{WIDTH}] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [{WIDTH}] }}
"""
_NO_AGENTS = "agents: {most_tracked: 0}\n"
_NO_HISTOGRAMS = ("--no-latency-histograms", "--flight-recorder=off")
#: Cycles through requests that are made once.
_SCRIPT = """
local file = io.open("%s", "rb")
local texts = {}
for line in file:lines() do texts[#texts + 1] = line end
file:close()
local heads, bodies = {}, {}
local n = 0
local tensor = string.rep("\\0", %d)
local ready = {}
init = function(arguments)
  for i, text in ipairs(texts) do
    local agent, body = text:match("^(%%S+) (.*)$")
    local headers = {
      ["%s"] = agent,
      ["Content-Type"] = "application/octet-stream",
      ["Inference-Header-Content-Length"] = tostring(#body),
    }
    ready[i] = wrk.format("POST", "%s", headers, body .. tensor)
  end
end
request = function()
  n = n + 1
  return ready[n %% #ready + 1]
end
"""
_START_SECONDS = 60.0


@dataclass(frozen=True)
class Setting:
    """What is on. ``worker`` and ``gateway``: flags; ``{url}`` and ``{file}`` are filled in."""

    name: str
    worker: tuple[str, ...]
    gateway: tuple[str, ...]
    counts: bool = False


_TRACES = ("--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,url={url}")
_LEVEL = "--trace-config=level=TIMESTAMPS"
_LOG = ("--access-log=0.01", "--access-log-file={file}")
SETTINGS = (
    Setting(OFF, _NO_HISTOGRAMS, _NO_HISTOGRAMS),
    Setting("metrics", ("--flight-recorder=off",), ("--flight-recorder=off",), counts=True),
    Setting("flight recorder", ("--no-latency-histograms",), ("--no-latency-histograms",)),
    Setting("tracing off", (*_NO_HISTOGRAMS, *_TRACES, "--trace-config=level=OFF"), _NO_HISTOGRAMS),
    Setting(
        "1 % traced",
        (*_NO_HISTOGRAMS, *_TRACES, _LEVEL, "--trace-config=rate=100"),
        (*_NO_HISTOGRAMS, *_TRACES, "--trace-config=rate=100"),
    ),
    Setting("1 % access log", (*_NO_HISTOGRAMS, *_LOG), (*_NO_HISTOGRAMS, *_LOG)),
    Setting(
        "all of them",
        (*_TRACES, _LEVEL, "--trace-config=rate=100", *_LOG),
        (*_TRACES, "--trace-config=rate=100", *_LOG),
        counts=True,
    ),
)


@dataclass
class Server:
    """What is loaded, and the processes behind it."""

    setting: Setting
    url: str
    metrics: list[str]
    processes: list[subprocess.Popen[bytes]]
    compiled: bool
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(each.pid) for each in self.processes)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cores_of(text: str) -> list[int]:
    """``0-3,6``."""
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.observe_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=4, help="of one figure")
    parser.add_argument("--short", action="store_true", help="three rounds of two seconds")
    parser.add_argument("--setup", choices=("worker", "gateway", "both"), default="both")
    parser.add_argument("--only", action="append", metavar="NAME", help="settings beside 'everything off'")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--workers", type=int, help="behind a gateway (default: one per core of --worker-cores)")
    parser.add_argument("--front-cores", type=cores_of, help="of the process that is loaded: 0, or 0-1")
    parser.add_argument("--worker-cores", type=cores_of, help="of the workers behind a gateway")
    parser.add_argument("--generator-cores", type=cores_of, help="of the generator and the collector")
    parser.add_argument("--wrk", default=shutil.which("wrk") or "", help="path of wrk; '': isochrone bench")
    parser.add_argument("--scrape-seconds", type=float, default=1.0, help="between two readings of a metrics page")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.short:
        given.rounds, given.seconds = 3, 2
    cores = sorted(os.sched_getaffinity(0))
    many = len(cores) >= 8
    given.front_cores = given.front_cores or cores[:1]
    given.worker_cores = given.worker_cores or (cores[1:4] if many else cores[:1])
    given.generator_cores = given.generator_cores or (cores[4:] if many else cores[1:] or cores)
    given.workers = given.workers or len(given.worker_cores)
    return given


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def started(words: Sequence[str], cores: Sequence[int], log: Path) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
    """A process of the package, and its "ready" line."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "isochrone", *words, "--log-json"],
            stdout=subprocess.DEVNULL,
            stderr=output,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
    try:
        yield process, _ready(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(process: subprocess.Popen[bytes], log: Path) -> Any:
    ends = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("{") and json.loads(line).get("event") == "ready":
                return json.loads(line)
        time.sleep(0.05)
    raise SystemExit(f"bench.observe_cost: a process is not ready:\n{log.read_text(errors='replace')[-3000:]}")


class _Collector(BaseHTTPRequestHandler):
    """Takes every export."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", "0")))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def collector() -> Iterator[str]:
    server = ThreadingHTTPServer((HOST, 0), _Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/v1/traces"
    finally:
        server.shutdown()
        server.server_close()


def start(stack: ExitStack, setup: str, setting: Setting, given: argparse.Namespace, place: Path, url: str) -> Server:
    folder = place / setup / setting.name.replace(" ", "-").replace("%", "percent")
    folder.mkdir(parents=True)
    rules = folder / "rules.yaml"
    rules.write_text("" if setting.counts else _NO_AGENTS)

    def filled(flags: Sequence[str], name: str) -> list[str]:
        return [flag.format(url=url, file=folder / f"{name}.access") for flag in flags]

    def worker(number: int, cores: Sequence[int]) -> tuple[subprocess.Popen[bytes], Any]:
        words = ["serve", str(place / "models"), "--host", HOST, "--http-port", "0", "--grpc-port", "0"]
        words += ["--metrics-port", "0", *filled(setting.worker, f"worker-{number}")]
        return stack.enter_context(started(words, cores, folder / f"worker-{number}.log"))

    if setup == "worker":
        process, ready = worker(0, given.front_cores)
        pages = [f"http://{HOST}:{ready['metrics']}/metrics"]
        return Server(setting, f"http://{HOST}:{ready['http']}", pages, [process], ready["compiled"])
    workers = [
        worker(number, [given.worker_cores[number % len(given.worker_cores)]]) for number in range(given.workers)
    ]
    (port,) = free_ports(1)
    words = ["gateway", "--listen", f"{HOST}:{port}", "--metrics-port", "0", "--probe-interval", "1"]
    words += ["--probe-timeout", "1", "--rules", str(rules), *filled(setting.gateway, "gateway")]
    for _, ready in workers:
        words += ["--upstream", f"{HOST}:{ready['http']}"]
    process, ready = stack.enter_context(started(words, given.front_cores, folder / "gateway.log"))
    pages = [f"http://{HOST}:{each['metrics']}/metrics" for each in (ready, *(each for _, each in workers))]
    return Server(setting, f"http://{HOST}:{port}", pages, [process, *(each for each, _ in workers)], ready["compiled"])


def load(server: Server, given: argparse.Namespace, script: Path, seconds: float) -> tuple[float, float, float]:
    """Requests per second, CPU microseconds per request, p99 in microseconds."""
    before = server.cpu_seconds()
    if given.wrk:
        threads = max(1, min(len(given.generator_cores), 4))
        command = [given.wrk, f"-t{threads}", f"-c{given.in_flight}", f"-d{seconds:g}s", "--latency"]
        output = _run([*command, "-s", str(script), server.url], seconds)
        if "Non-2xx" in output or "Socket errors" in output:
            raise SystemExit(f"bench.observe_cost: requests failed:\n{output}")
        rate = float(found_in(r"Requests/sec:\s+([\d.]+)", output))
        requests = int(found_in(r"(\d+) requests in", output))
        p99 = microseconds(found_in(r"(?m)^\s+99%\s+(\S+)$", output))
    else:
        words = ["bench", server.url, "--model", MODEL, "--concurrency", str(given.in_flight), "--json"]
        words += ["--seconds", f"{seconds:g}", "--warmup-seconds", "0", "--header", f"{AGENT_HEADER}: agent-1"]
        total = json.loads(_run([sys.executable, "-m", "isochrone", *words], seconds))["total"]
        rate, requests = float(total["rate"]), round(float(total["rate"]) * seconds)
        p99 = float(total["latency_ms"]["p99"]["value"]) * 1000
    return rate, (server.cpu_seconds() - before) / max(1, requests) * 1e6, p99


def _run(command: Sequence[str], seconds: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    if done.returncode:
        raise SystemExit(f"bench.observe_cost: {' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def found_in(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise SystemExit(f"bench.observe_cost: the generator's output has no {pattern}:\n{text}")
    return found[1]


def microseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 1, "ms": 1e3, "s": 1e6}[unit]


def write_script(place: Path) -> Path:
    texts = place / "requests.txt"
    shape = {"name": "INPUT0", "shape": [WIDTH], "datatype": "FP32", "parameters": {"binary_data_size": 4 * WIDTH}}
    with texts.open("w") as file:
        for number in range(REQUESTS):
            body = {
                "id": f"request-{number:06d}",
                "inputs": [shape],
                "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
            }
            file.write(f"agent-{number % AGENTS} {json.dumps(body, separators=(',', ':'))}\n")
    script = place / "load.lua"
    script.write_text(_SCRIPT % (texts, 4 * WIDTH, AGENT_HEADER, f"/v2/models/{MODEL}/infer"))
    return script


def page(server: Server) -> str:
    """The metrics pages of all processes."""
    return "".join(urllib.request.urlopen(each, timeout=10).read().decode() for each in server.metrics)


def counted(text: str, name: str, *labels: str) -> float:
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith(name) and all(label in line for label in labels)
    )


def check(server: Server, setup: str) -> dict[str, float]:
    """That a setting was what its name says: what its processes have counted."""
    text = page(server)
    name = "isochrone_gateway_request_duration_seconds" if setup == "gateway" else "isochrone_request_duration_seconds"
    found = {
        "latencies": counted(text, f"{name}_count"),
        "traces": counted(text, "isochrone_trace_kept_total", 'reason="share"'),
        "traces_dropped": counted(text, "isochrone_trace_dropped_total"),
        "log_lines": counted(text, "isochrone_access_log_lines_total"),
        "log_lines_dropped": counted(text, "isochrone_access_log_dropped_total"),
    }
    setting = server.setting
    expected = {
        "latencies": setting.counts,
        "traces": "TIMESTAMPS" in str(setting.worker),
        "log_lines": "access-log" in str(setting.worker),
    }
    for key, is_on in expected.items():
        if bool(found[key]) != is_on:
            raise SystemExit(f"bench.observe_cost: {setup}, {setting.name}: {key} is {found[key]:g}")
    return found


@contextmanager
def scraped(server: Server, given: argparse.Namespace) -> Iterator[None]:
    """Its metrics are read every few seconds while it is loaded, if it counts."""
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(given.scrape_seconds):
            page(server)

    thread = threading.Thread(target=scrape, daemon=True)
    if server.setting.counts:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if server.setting.counts:
            thread.join()


def measure(setup: str, given: argparse.Namespace, place: Path, script: Path, url: str) -> dict[str, Any]:
    wanted = [each for each in SETTINGS if each.name == OFF or not given.only or each.name in given.only]
    with ExitStack() as stack:
        servers = [start(stack, setup, each, given, place, url) for each in wanted]
        for server in servers:
            load(server, given, script, 1.0)
        off, others = servers[0], servers[1:]
        ratios: dict[str, list[float]] = {each.setting.name: [] for each in others}
        for number in range(given.rounds):
            # Who comes first changes from round to round.
            turn = number % max(1, len(others))
            order = [off, *others[turn:], *others[:turn], off]
            figures = []
            for server in order:
                with scraped(server, given):
                    figures.append(load(server, given, script, given.seconds))
                rate, cpu_us, p99_us = figures[-1]
                server.rates.append(rate)
                server.cpu_us.append(cpu_us)
                server.p99_us.append(p99_us)
            base = (figures[0][0] + figures[-1][0]) / 2
            for server, (rate, _, _) in zip(order[1:-1], figures[1:-1], strict=True):
                ratios[server.setting.name].append(rate / base)
            say(f"{setup}: round {number + 1} of {given.rounds}, {base:,.0f} requests/s with everything off")
        found: dict[str, Any] = {"compiled": off.compiled, "settings": {}}
        for server in servers:
            found["settings"][server.setting.name] = {
                "ratios": ratios.get(server.setting.name, []),
                "requests_per_second": server.rates,
                "cpu_us_per_request": server.cpu_us,
                "p99_us": server.p99_us,
                "counted": check(server, setup),
            }
        return found


def show(setup: str, found: dict[str, Any]) -> None:
    settings = found["settings"]
    base = settings[OFF]
    cpu = statistics.median(base["cpu_us_per_request"])
    print(f"\n{setup} ({'compiled' if found['compiled'] else 'interpreted'}), closed loop")
    print(f"{'':18} {'requests/s':>12} {'ratio':>7} {'[least–most]':>16} {'CPU µs':>8} {'ratio':>7} {'p99 µs':>8}")
    for name, each in settings.items():
        ratios = each["ratios"] or [
            rate / statistics.mean(base["requests_per_second"]) for rate in base["requests_per_second"]
        ]
        own = statistics.median(each["cpu_us_per_request"])
        spread = f"[{min(ratios):.3f}–{max(ratios):.3f}]"
        print(
            f"{name:18} {statistics.median(each['requests_per_second']):12,.0f} {statistics.median(ratios):7.3f}"
            f" {spread:>16} {own:8.2f} {own / cpu:7.3f} {statistics.median(each['p99_us']):8,.0f}"
        )


def main() -> int:
    given = arguments()
    os.sched_setaffinity(0, given.generator_cores)
    results: dict[str, Any] = {"machine": describe(), "rounds": given.rounds, "seconds": given.seconds}
    results["generator"] = given.wrk or "isochrone bench"
    results["cores"] = {"front": given.front_cores, "workers": given.worker_cores, "rest": given.generator_cores}
    setups = ("worker", "gateway") if given.setup == "both" else (given.setup,)
    with tempfile.TemporaryDirectory(prefix="observe-cost-") as name, collector() as url:
        place = Path(name)
        files = place / "models" / MODEL
        (files / "1").mkdir(parents=True)
        (files / "config.pbtxt").write_text(MODEL_CONFIG)
        script = write_script(place)
        for setup in setups:
            results[setup] = measure(setup, given, place, script, url)
            show(setup, results[setup])
    given.results.mkdir(parents=True, exist_ok=True)
    path = given.results / "observe_cost.json"
    path.write_text(json.dumps(results, indent=1))
    print(f"\nwritten to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
