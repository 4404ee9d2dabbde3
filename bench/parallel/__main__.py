"""``python -m bench.parallel``: one encoder as TP 1, TP 2, PP 2 and TP 2 × PP 2 on the CPU.

For each layout, in turns: requests/s and median of closed loops of callers over HTTP; answers are compared with those
of the single process. Then each rank is killed with SIGKILL under load: how long until the next answer, and what
callers saw meanwhile. Ranks share the machine's cores, so this shows what ranks cost there, not what they gain on more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.gpu.worker import serve
from bench.worker.machine import describe
from bench.worker.peers import Peer
from bench.worker.peers.process import scratch
from isochrone import Client
from isochrone.errors import IsochroneError

#: Name → tensor_parallel, pipeline_parallel.
LAYOUTS = {"tp1": (1, 1), "tp2": (2, 1), "pp2": (1, 2), "tp2_pp2": (2, 2)}
SIZES = {"LAYERS": 6, "WIDTH": 384, "HEADS": 6, "TOKENS": 64, "VOCABULARY": 5000}
TINY = {"LAYERS": 2, "WIDTH": 32, "HEADS": 2, "TOKENS": 8, "VOCABULARY": 50}
#: Beyond it an answer is wrong: sums of ranks are added in another order.
_TOLERANCE = 1e-3
_MAX_BATCH = 16


def write_models(directory: Path, sizes: dict[str, int]) -> None:
    weights: Path | None = None
    for name, (tensor, pipeline) in LAYOUTS.items():
        version = directory / name / "1"
        version.mkdir(parents=True)
        shutil.copyfile(Path(__file__).with_name("model.py"), version / "model.py")
        (version / "sizes.py").write_text("".join(f"{key} = {value}\n" for key, value in sizes.items()))
        if weights is None:
            weights = version / "model.safetensors"
            _write_weights(version)
        else:
            os.link(weights, version / weights.name)
        (directory / name / "config.pbtxt").write_text(
            f'name: "{name}"\nbackend: "pytorch"\nmax_batch_size: {_MAX_BATCH}\n'
            f'input {{ name: "ids" data_type: TYPE_INT64 dims: [ {sizes["TOKENS"]} ] }}\n'
            f'output {{ name: "pooled" data_type: TYPE_FP32 dims: [ {sizes["WIDTH"]} ] }}\n'
            "dynamic_batching { }\ninstance_group { kind: KIND_CPU count: 1 }\n"
            f'parameters {{ key: "tensor_parallel" value {{ string_value: "{tensor}" }} }}\n'
            f'parameters {{ key: "pipeline_parallel" value {{ string_value: "{pipeline}" }} }}\n'
        )


def _write_weights(version: Path) -> None:
    import importlib

    import torch
    from safetensors.torch import save_model

    sys.path.insert(0, str(version))
    try:
        torch.manual_seed(7)
        save_model(importlib.import_module("model").build(), str(version / "model.safetensors"))
    finally:
        sys.path.remove(str(version))


class Callers:
    """Threads that call one model in closed loops, each with its own connection and its own row."""

    def __init__(self, peer: Peer, model: str, count: int, rows: np.ndarray, expected: np.ndarray | None) -> None:
        self._peer, self._model, self._rows, self._expected = peer, model, rows, expected
        self.stopped = threading.Event()
        #: Times of answers: when, and how long the request took.
        self.answers: list[tuple[float, float]] = []
        self.errors: Counter[str] = Counter()
        self.wrong = 0
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(count)]

    @contextmanager
    def running(self) -> Iterator[Callers]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self.stopped.set()
            for thread in self._threads:
                thread.join()

    def _call(self, number: int) -> None:
        row = number % len(self._rows)
        with Client(str(self._peer.http_url), retries=0) as client:
            while not self.stopped.is_set():
                began = time.monotonic()
                try:
                    given = client.infer(self._model, {"ids": self._rows[row : row + 1]}, deadline_ms=60_000)["pooled"]
                except IsochroneError as error:
                    self.errors[str(error)[:160]] += 1
                    time.sleep(0.01)
                    continue
                now = time.monotonic()
                self.answers.append((now, now - began))
                if self._expected is not None and np.abs(given[0] - self._expected[row]).max() > _TOLERANCE:
                    self.wrong += 1


def rank_pids(peer: Peer, ranks: int) -> list[list[int]]:
    """The ranks of every instance with so many: rank 0, then its children in the order of their start."""
    found = []
    for child in psutil.Process(peer.pid).children(recursive=True):
        others = [each for each in child.children() if "rank_main" in " ".join(each.cmdline())]
        if len(others) == ranks - 1 > 0:
            found.append([child.pid, *(each.pid for each in sorted(others, key=lambda each: each.create_time()))])
    return found


def recovery(peer: Peer, model: str, rank: int, rows: np.ndarray, expected: np.ndarray) -> dict[str, Any]:
    """Kills one rank under load; seconds until the first answer to a request that was sent after that."""
    tensor, pipeline = LAYOUTS[model]
    with Callers(peer, model, 4, rows, expected).running() as callers:
        while len(callers.answers) < 10:
            time.sleep(0.01)
        (pids,) = rank_pids(peer, tensor * pipeline)
        killed = time.monotonic()
        os.kill(pids[rank], signal.SIGKILL)
        while True:
            after = [when for when, took in list(callers.answers) if when - took > killed]
            if after or time.monotonic() - killed > 120:
                break
            time.sleep(0.005)
        time.sleep(0.5)
    seconds = min(after) - killed if after else float("nan")
    return {"seconds": seconds, "errors": dict(callers.errors), "wrong": callers.wrong}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.parallel", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="per figure")
    parser.add_argument("--in-flight", default="1,16")
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--kill", default="tp2_pp2", help="the layout whose ranks are killed; empty: none")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    # The worker must not outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sizes = TINY if given.tiny else SIZES
    layouts = given.layouts.split(",")
    rows = np.random.default_rng(3).integers(0, sizes["VOCABULARY"], (32, sizes["TOKENS"]))
    figures: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    wrong = 0
    failures: Counter[str] = Counter()
    print(describe())
    with scratch("parallel") as directory:
        write_models(directory / "models", sizes)
        options = ["--model-control-mode", "explicit"]
        for model in dict.fromkeys(["tp1", *layouts, *filter(None, [given.kill])]):
            options += ["--load-model", model]
        with serve(directory / "models", directory, options, timeout_seconds=240) as peer:
            with Client(str(peer.http_url)) as client:
                parts = [client.infer("tp1", {"ids": rows[at : at + 8]})["pooled"] for at in range(0, len(rows), 8)]
            expected = np.concatenate(parts)
            for number in range(given.rounds):
                for many in map(int, given.in_flight.split(",")):
                    for model in layouts if number % 2 == 0 else reversed(layouts):
                        with Callers(peer, model, many, rows, expected).running() as callers:
                            time.sleep(given.seconds)
                        took = [seconds for _, seconds in callers.answers]
                        wrong += callers.wrong
                        failures += callers.errors
                        if took:
                            figures[model, many].append((len(took) / given.seconds, statistics.median(took)))
            print(f"{'layout':10} {'in flight':>9} {'requests/s':>11} {'median ms':>10}")
            for (model, many), rounds in sorted(figures.items(), key=lambda item: item[0][1]):
                rate, middle = (statistics.median(each) for each in zip(*rounds, strict=True))
                print(f"{model:10} {many:9} {rate:11.1f} {1000 * middle:10.2f}")
            if given.kill:
                tensor, pipeline = LAYOUTS[given.kill]
                for rank in range(tensor * pipeline):
                    found = recovery(peer, given.kill, rank, rows, expected)
                    wrong += found["wrong"]
                    failed = sum(found["errors"].values())
                    after = f"the next answer after {found['seconds']:.2f} s, {failed} errors"
                    print(f"{given.kill}: rank {rank} killed: {after}")
                    for text, times in found["errors"].items():
                        print(f"    {times} × {text}")
    print(f"wrong answers: {wrong}")
    for text, times in failures.items():
        print(f"FAILED {times} × {text}")
    return 1 if wrong or failures else 0


if __name__ == "__main__":
    sys.exit(main())
