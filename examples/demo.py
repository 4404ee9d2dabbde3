"""``make demo``: serves the sample models, sends them load, prints what came of it.

Starts ``isochrone serve`` as a process of its own on free ports. On a terminal it keeps serving afterwards until
Ctrl-C; elsewhere it stops the server, checks that it ended well, and exits 0.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, NoReturn

import numpy as np
import uvloop
from closed_loop import Requests, Tally, drive, encode, repeated, sequences
from rich.console import Console
from rich.table import Table

from isochrone.cli.waterfall import percentile, render, stages_of
from isochrone.protocol.timing import parse_server_timing

HERE = Path(__file__).resolve().parent
START_SECONDS = 60.0
STOP_SECONDS = 30.0
#: Connections of each model, all at once.
CONNECTIONS = {"detector": 8, "preprocess": 4, "pipeline": 4, "tracker": 4}

console = Console(highlight=False)


class DemoFailed(Exception):
    """The sentence says what to do about it."""


class Server:
    """The server's process and its log."""

    def __init__(self, models: Path, log: IO[str]) -> None:
        self._log = log
        command = [sys.executable, "-m", "isochrone", "serve", str(models), "--host", "127.0.0.1", "--log-json"]
        command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
        # In a group of its own: Ctrl-C is for the demo, which then ends the server in good order.
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, process_group=0
        )

    def wait_until_ready(self) -> dict[str, int]:
        """The ports, by service, once every model is loaded and warm."""
        give_up = time.monotonic() + START_SECONDS
        while time.monotonic() < give_up:
            ended = self.process.poll()
            for line in self.lines():
                if '"event": "ready"' in line:
                    told = json.loads(line)
                    return {service: int(told[service]) for service in ("http", "grpc", "metrics")}
            if ended is not None:
                raise DemoFailed(f"the server ended with code {ended} before it was ready; {self._last_words()}")
            time.sleep(0.02)
        raise DemoFailed(f"the server was not ready after {START_SECONDS:.0f} s; {self._last_words()}")

    def lines(self) -> list[str]:
        return Path(self._log.name).read_text(errors="replace").splitlines()

    def _last_words(self) -> str:
        return "its last lines:\n  " + "\n  ".join(self.lines()[-5:])

    def end(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise DemoFailed(f"the server did not stop within {STOP_SECONDS:.0f} s and was killed") from None

    def stop(self) -> None:
        """Ends the server, which has to end well."""
        code = self.end()
        if code != 0:
            raise DemoFailed(f"the server ended with code {code}, expected 0; {self._last_words()}")


def load_plan() -> tuple[list[tuple[Requests, Tally]], list[Tally]]:
    """What every connection sends."""
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
    for model, count in CONNECTIONS.items():
        tally = Tally(model)
        tallies.append(tally)
        for index in range(count):
            if model == "tracker":
                plan.append((sequences(model, "measured", 16, index + 1, count), tally))
            else:
                plan.append((repeated(fixed[model]), tally))
    return plan, tallies


def check(tallies: list[Tally]) -> None:
    for tally in tallies:
        if tally.failures:
            raise DemoFailed(f"{tally.failures} requests to {tally.model} failed; the first: {tally.first_failure}")
        if not tally.milliseconds:
            raise DemoFailed(f"no request to {tally.model} was answered; is the machine overloaded?")


def figures(tallies: list[Tally], seconds: float) -> Table:
    connections = sum(CONNECTIONS.values())
    title = f"all models at once for {seconds:.1f} s, one request in flight per connection"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    for column in ("model", "connections", "requests/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms"):
        table.add_column(column, justify="left" if column == "model" else "right")
    total = 0.0
    for tally in tallies:
        ordered = sorted(tally.milliseconds)
        rate = len(ordered) / seconds
        total += rate
        shares = [f"{percentile(ordered, share):.2f}" for share in (0.5, 0.9, 0.99, 0.999)]
        table.add_row(tally.model, str(CONNECTIONS[tally.model]), f"{rate:,.0f}", *shares)
    table.add_row("all", str(connections), f"{total:,.0f}", style="bold")
    return table


def waterfall(port: int) -> Table:
    """The median of some requests that ask for their timing, now that nothing else runs."""
    features = np.random.default_rng(2).standard_normal((1, 64), np.float32)
    request = encode("detector", "features", "FP32", features, {}, extra="x-isochrone-timing: 1\r\n")
    tally = Tally("detector", heads=[])
    uvloop.run(drive(port, [(iter([request] * 200), tally)], 5))
    check([tally])
    total, head = sorted(zip(tally.milliseconds, tally.heads or [], strict=True))[len(tally.milliseconds) // 2]
    told = head.lower().partition(b"server-timing:")[2].partition(b"\r\n")[0]
    return render(total, stages_of(total, parse_server_timing(told)), "where one request's time goes (detector, alone)")


def say_where(ports: dict[str, int]) -> None:
    http = f"http://127.0.0.1:{ports['http']}"
    console.print("\nStill serving; Ctrl-C stops it. Try:")
    for line in (
        f"isochrone infer detector --url {http}",
        f"isochrone infer pipeline --url grpc://127.0.0.1:{ports['grpc']} --batch 8 --repeat 100",
        f"curl {http}/v2/models/detector",
        f"curl http://127.0.0.1:{ports['metrics']}/metrics",
    ):
        console.print(f"  {line}", soft_wrap=True)


def run(models: Path, seconds: float, stay: bool) -> None:
    if not (models / "detector" / "config.pbtxt").is_file():
        raise DemoFailed(f"no sample models in {models}; write them with: python examples/build_models.py")
    with tempfile.NamedTemporaryFile("w", prefix="isochrone-demo-", suffix=".log") as log:
        server = Server(models, log)
        try:
            ports = server.wait_until_ready()
            console.print(f"serving {models} on ports {ports['http']} (HTTP), {ports['grpc']} (gRPC)\n", soft_wrap=True)
            plan, tallies = load_plan()
            began = time.monotonic()
            uvloop.run(drive(ports["http"], plan, seconds))
            elapsed = time.monotonic() - began
            check(tallies)
            console.print(figures(tallies, elapsed))
            console.print()
            console.print(waterfall(ports["http"]))
            if stay:
                say_where(ports)
                server.process.wait()
        except KeyboardInterrupt:
            console.print("\nstopping")
        except BaseException:
            # What went wrong first is what to tell.
            server.end()
            raise
        server.stop()


def _ended(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the sample models, send them load, print figures.")
    parser.add_argument("--models", type=Path, default=HERE / "models", help="model repository (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to send load (default: %(default)g)")
    arguments = parser.parse_args()
    # So that the server is stopped, too, when the demo is told to end.
    # A shell that starts it in the background has Ctrl-C ignored; on a terminal it must still end the demo.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended)
    try:
        run(arguments.models, arguments.seconds, stay=sys.stdout.isatty() and sys.stdin.isatty())
    except (DemoFailed, OSError) as error:
        sys.exit(f"demo: {error}")


if __name__ == "__main__":
    main()
