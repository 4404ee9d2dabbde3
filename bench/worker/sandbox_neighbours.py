"""`python -m bench.worker.sandbox_neighbours`: latency of a model beside hostile ones in the sandbox.

One worker with `--sandbox` has a neighbour, which is asked at a steady rate, and a hostile model. Periods without an
attack and with one take turns, so that a drift of the machine is in both. An answer that is late counts from when its
request was due. The table has the neighbour's p50 and p99 of both kinds of periods, and its failures.

It does not show isolation of processor time: `spin` takes a core, which is the load that any busy model is.
"""

import argparse
import http.client
import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.realistic.servers import serve
from bench.worker.machine import RESULTS, describe
from bench.worker.peers.process import scratch

_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
"""
_ECHO = """
class Model:
    def infer(self, inputs):
        return {"OUT": inputs["IN"]}
"""
_HOSTILE = """
class Model:
    def infer(self, inputs):
        exec(inputs["IN"].flat[0].decode(), {})
        return {"OUT": inputs["IN"]}
"""
ATTACKS = {
    "files": "for _ in range(1000):\n    try: open('/etc/passwd')\n    except PermissionError: pass",
    "sockets": "import socket\nfor _ in range(1000):\n    try: socket.socket()\n    except PermissionError: pass",
    "forks": "import os\nfor _ in range(1000):\n    try: os.fork()\n    except PermissionError: pass",
    "memory": "held = []\ntry:\n    while True: held.append(bytearray(16 << 20))\nexcept MemoryError: pass",
    "disk": "file = open('/dev/shm/full', 'wb', 0)\n"
    "try:\n    while True: file.write(bytes(1 << 20))\nexcept OSError: pass",
    "output": "print('x' * (8 << 20))",
    "crash": "import ctypes; ctypes.string_at(0)",
    "spin": "import time\nends = time.monotonic() + 0.2\nwhile time.monotonic() < ends: pass",
}


class Asker:
    """Requests to one model over one connection."""

    def __init__(self, url: str, model: str, source: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self._path = f"/v2/models/{model}/infer"
        tensor = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": [source]}
        self._body = json.dumps({"inputs": [tensor]}).encode()

    def ask(self) -> int:
        self._connection.request("POST", self._path, self._body)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


@contextmanager
def attacked(url: str, source: str) -> Iterator[None]:
    """The hostile model runs the source again and again; "": it does nothing."""
    over = threading.Event()

    def attack() -> None:
        asker = Asker(url, "hostile", source)
        while not over.is_set():
            asker.ask()

    thread = threading.Thread(target=attack)
    if source:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if source:
            thread.join()


def period(url: str, source: str, seconds: float, rate: float) -> tuple[list[float], int]:
    """Milliseconds of the neighbour's answers, and its failures."""
    asker, latencies, failures = Asker(url, "neighbour", "x"), [], 0
    with attacked(url, source):
        begins = time.monotonic()
        for number in range(int(seconds * rate)):
            due = begins + number / rate
            time.sleep(max(0.0, due - time.monotonic()))
            failures += asker.ask() != 200
            latencies.append(1000 * (time.monotonic() - due))
    return latencies, failures


def compare(url: str, source: str, rounds: int, seconds: float, rate: float) -> dict[str, object]:
    quiet: list[float] = []
    beside: list[float] = []
    failures = 0
    for _ in range(rounds):
        for latencies, attack in ((quiet, ""), (beside, source)):
            measured, failed = period(url, attack, seconds, rate)
            latencies += measured
            failures += failed
    return {
        "failures": failures,
        **{f"p50_{name}_ms": statistics.median(each) for name, each in (("quiet", quiet), ("beside", beside))},
        **{f"p99_{name}_ms": _p99(each) for name, each in (("quiet", quiet), ("beside", beside))},
    }


def _p99(latencies: list[float]) -> float:
    return sorted(latencies)[int(0.99 * len(latencies))]


def _write_models(repository: Path) -> Path:
    for name, source in (("neighbour", _ECHO), ("hostile", _HOSTILE)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(_CONFIG)
        (repository / name / "1" / "model.py").write_text(source)
    return repository


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--out", type=Path, default=RESULTS / "sandbox-neighbours.json")
    given = parser.parse_args()
    results = {}
    with scratch("sandbox") as directory:
        repository = _write_models(directory / "models")
        with serve(repository, directory, ("--sandbox", "--sandbox-memory", "512MiB")) as peer:
            print(f"{'attack':<10} {'p50 quiet':>10} {'beside':>8} {'p99 quiet':>10} {'beside':>8}  failures")
            for attack in given.attacks:
                found = compare(str(peer.http_url), ATTACKS[attack], given.rounds, given.seconds, given.rate)
                results[attack] = found
                print(
                    f"{attack:<10} {found['p50_quiet_ms']:>10.2f} {found['p50_beside_ms']:>8.2f}"
                    f" {found['p99_quiet_ms']:>10.2f} {found['p99_beside_ms']:>8.2f}  {found['failures']}"
                )
    given.out.write_text(json.dumps({"machine": describe(), "attacks": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
