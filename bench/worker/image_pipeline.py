"""`python -m bench.worker.image_pipeline`: pictures through decode, normalise, classifier and postprocess.

The ensemble of examples/image_pipeline over HTTP, a JPEG as one binary BYTES tensor, with one instance of `decode` and
with two. For each number of requests in flight: requests/s, median and p99 by wrk; where the time of a request went
(`Server-Timing` of one more client beside wrk, so the stages are those under load); and how busy the instances of each
model were (its compute time by the statistics endpoint, over the time of the run: 1.0 is one instance at work all the
time). `overlap` is requests/s times the sum of the steps of a lone request: above 1, steps of several requests ran at
the same time.
"""

import argparse
import http.client
import json
import re
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bench.realistic.servers import serve
from bench.worker.load import Figure, LoadFailed, duration_us, first_group, run_tool
from bench.worker.machine import RESULTS, describe
from bench.worker.payloads import HttpRequest, wrk_script
from bench.worker.peers import Peer
from bench.worker.peers.process import REPOSITORY_ROOT, scratch
from isochrone.protocol.headers.timing import parse_server_timing, step_of

EXAMPLE = REPOSITORY_ROOT / "examples" / "image_pipeline"
sys.path.insert(0, str(EXAMPLE))
import picture_client as client  # noqa: E402
import picture_models as build  # noqa: E402

ENSEMBLE = "image_classification"
STEPS = ("decode", "normalise", "classifier", "postprocess")
#: Seconds until wrk has started and its connections are open.
_UNTIL_LOAD = 0.3


@dataclass(frozen=True)
class Cell:
    """One run."""

    decoders: int
    in_flight: int
    figure: Figure
    #: Median ms of each step, its wait for an instance included, and of the whole request in the server.
    steps_ms: dict[str, float]
    total_ms: float
    #: Instances at work on average, by model.
    busy: dict[str, float]


def request_of(picture: bytes) -> HttpRequest:
    data = len(picture).to_bytes(4, "little") + picture
    tensor = {"name": "image", "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in ("labels", "scores")]
    head = json.dumps({"inputs": [tensor], "outputs": outputs}, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return HttpRequest(f"/v2/models/{ENSEMBLE}/infer", head + data, headers)


class Sampler:
    """A client that sends one request after the other and keeps the stages of each."""

    def __init__(self, url: str, request: HttpRequest) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._request = request
        self.steps: dict[str, list[float]] = {name: [] for name in STEPS}
        self.totals: list[float] = []
        self._stop = threading.Event()

    def send(self) -> bytes:
        headers = {**self._request.headers, "x-isochrone-timing": "1"}
        self._connection.request("POST", self._request.path, self._request.body, headers)
        response = self._connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise LoadFailed(f"status {response.status}: {content[:300]!r}")
        stages = parse_server_timing(response.headers["server-timing"])
        self.totals.append(sum(each for stage, each in stages.items() if step_of(stage) is None))
        for stage, milliseconds in stages.items():
            if (step := step_of(stage)) is not None:
                self.steps[step].append(milliseconds)
        return content

    def send_for(self, seconds: float, after: float = 0.0) -> None:
        time.sleep(after)
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up and not self._stop.is_set():
            self.send()

    def stop(self) -> None:
        self._stop.set()

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(each) for name, each in self.steps.items()}

    def close(self) -> None:
        self._connection.close()


def compute_ns(url: str) -> dict[str, int]:
    """ns that the instances of each model have computed, from the statistics endpoint."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        found = {}
        for name in STEPS:
            connection.request("GET", f"/v2/models/{name}/stats")
            (model,) = json.loads(connection.getresponse().read())["model_stats"]
            # By batch: those of the requests count the time of a batch once for each of them.
            found[name] = sum(int(batch["compute_infer"]["ns"]) for batch in model["batch_stats"])
        return found
    finally:
        connection.close()


def wrk(peer: Peer, request: HttpRequest, connections: int, seconds: float, directory: Path) -> Figure:
    script = directory / "picture.lua"
    if not script.exists():
        script.write_text(wrk_script(request))
    duration = max(1, round(seconds))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{duration}s", "--timeout", "30s", "--latency"]
    before = peer.cpu_seconds()
    output = run_tool([*command, "-s", str(script), f"{peer.http_url}{request.path}"], 60 + duration * 2)
    cpu = peer.cpu_seconds() - before
    if problem := re.search(r"Non-2xx.*|Socket errors:.*", output):
        raise LoadFailed(f"wrk: {problem[0].strip()}")
    return Figure(
        requests=int(first_group(r"(\d+) requests in", output)),
        requests_per_second=float(first_group(r"Requests/sec:\s+([\d.]+)", output)),
        cpu_seconds=cpu,
        median_us=duration_us(first_group(r"(?m)^\s+50%\s+(\S+)$", output)),
        p99_us=duration_us(first_group(r"(?m)^\s+99%\s+(\S+)$", output)),
    )


def measure(peer: Peer, request: HttpRequest, decoders: int, in_flight: int, seconds: float, directory: Path) -> Cell:
    """One cell. With one in flight, wrk and the client with stages take turns; otherwise they run together."""
    url = str(peer.http_url)
    sampler = Sampler(url, request)
    try:
        before, started = compute_ns(url), time.monotonic()
        if in_flight == 1:
            figure = wrk(peer, request, 1, seconds, directory)
            sampler.send_for(seconds / 2)
        else:
            thread = threading.Thread(target=sampler.send_for, args=(60 + seconds, _UNTIL_LOAD), name="sampler")
            thread.start()
            try:
                figure = wrk(peer, request, in_flight - 1, seconds, directory)
            finally:
                sampler.stop()
                thread.join()
        elapsed = time.monotonic() - started
        busy = {name: (after - before[name]) / 1e9 / elapsed for name, after in compute_ns(url).items()}
        return Cell(decoders, in_flight, figure, sampler.medians(), statistics.median(sampler.totals), busy)
    finally:
        sampler.close()


def verify(url: str, request: HttpRequest) -> None:
    """Raises SystemExit: the label is wrong. It also wakes up every thread of the pipeline."""
    sampler = Sampler(url, request)
    try:
        for _ in range(20):
            content = sampler.send()
    finally:
        sampler.close()
    if b"red" not in content:
        sys.exit(f"expected the label red in the answer, given {content!r}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(seconds: float, in_flight: list[int], size: tuple[int, int]) -> list[Cell]:
    request = request_of(client.picture("tomato", *size))
    found = []
    for decoders in (1, 2):
        with scratch("images") as directory:
            repository = build.build(directory / "models", decoders)
            with serve(repository, directory) as peer:
                verify(str(peer.http_url), request)
                for many in in_flight:
                    cell = measure(peer, request, decoders, many, seconds, directory)
                    say(f"  decode ×{decoders}, {many:3} in flight: {cell.figure.requests_per_second:8,.0f} /s")
                    found.append(cell)
    return found


def report(cells: list[Cell]) -> list[str]:
    alone = {cell.decoders: sum(cell.steps_ms.values()) for cell in cells if cell.in_flight == 1}
    steps = "".join(f"{name + ' ms':>15}" for name in STEPS)
    lines = [
        f"{'decode':>6} {'in flight':>9} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8} {steps} {'request ms':>11}"
        f" {'busy':>24} {'overlap':>8}"
    ]
    for cell in cells:
        figure = cell.figure
        own = "".join(f"{cell.steps_ms[name]:15.3f}" for name in STEPS)
        busy = " ".join(f"{cell.busy[name]:5.2f}" for name in STEPS)
        serial = alone.get(cell.decoders)
        overlap = f"{figure.requests_per_second * serial / 1e3:8.2f}" if serial else f"{'--':>8}"
        lines.append(
            f"{cell.decoders:>6} {cell.in_flight:>9} {figure.requests_per_second:11,.0f}"
            f" {(figure.median_us or 0) / 1e3:8.2f} {(figure.p99_us or 0) / 1e3:8.2f} {own} {cell.total_ms:11.3f}"
            f" {busy:>24} {overlap}"
        )
    for decoders, milliseconds in alone.items():
        lines.append(
            f"decode ×{decoders}: the steps of a lone request take {milliseconds:.2f} ms, one after the other"
            f" {1e3 / milliseconds:,.0f} requests/s"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.worker.image_pipeline", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="per figure")
    parser.add_argument("--in-flight", default="1,8,32")
    parser.add_argument("--size", default="640x480", help="of the picture")
    parser.add_argument("--quick", action="store_true", help="one second per figure: does everything still work?")
    given = parser.parse_args()
    if given.quick:
        given.seconds = 1.0
    width, height = (int(number) for number in given.size.split("x"))
    cells = run(given.seconds, [int(number) for number in given.in_flight.split(",")], (width, height))
    print("\n".join(report(cells)))
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = "image-pipeline-quick.json" if given.quick else "image-pipeline.json"
    content = {"machine": describe(), "size": given.size, "cells": [asdict(cell) for cell in cells]}
    (RESULTS / name).write_text(json.dumps(content, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
