"""``python -m bench.gpu.raw``: the models without a server, per batch size. What a server is measured against.

- *replay*: a captured CUDA graph, nothing copied; three in flight: rows per second; one at a time: latency.
- *copies*: pinned memory to the GPU, replay, answers to pinned memory, on a stream each, three slots in flight.
- *call*: the same for one batch at a time, on one stream, until the answers are in host memory: latency.
- *eager*: a call without a graph.

On a CPU all of them are plain calls: that shows only that the program works.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from bench.gpu.budget import rounds_within
from bench.gpu.figures import ResultsFile, markdown, spread
from bench.gpu.models.repository import FILE, compute_alike, write_repository
from bench.gpu.models.specs import FULL, MODELS, OVERLAP, TINY, spec_of
from bench.gpu.raw.raw_model import CALL, COPIES, EAGER, MODES, REPLAY, RawModel
from bench.worker.peers.process import scratch


def table(figures: list[dict[str, Any]]) -> str:
    """One line per model and batch size."""
    rows = []
    for model, batch in dict.fromkeys((each["model"], each["batch"]) for each in figures):
        own = [each for each in figures if (each["model"], each["batch"]) == (model, batch)]

        def of(mode: str, key: str, own: list[dict[str, Any]] = own) -> list[float | None]:
            return [each.get(key) for each in own if each["mode"] == mode]

        milliseconds = [
            spread((value and value / 1e3 for value in of(mode, "p50_us")), "{:.3f}".format)
            for mode in (REPLAY, CALL, EAGER)
        ]
        rates = [spread(of(mode, "rows_per_second")) for mode in (REPLAY, COPIES)]
        rows.append((f"{model} ×{batch}", *rates, *milliseconds))
    return markdown(("", "replay rows/s", "with copies rows/s", "replay ms", "call ms", "eager call ms"), rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.raw", description=__doc__)
    parser.add_argument("--repository", type=Path, help="of bench.gpu.models; what is missing in it is made")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--cells", default=",".join(MODELS[:3]), help="models")
    parser.add_argument("--batches", default="", help="such as 1,16,64; all graph sizes if left out")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--seconds", type=float, default=0.5, help="per figure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds from the start: fewer rounds, no further batch size"
    )
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    ends = time.monotonic() + given.limit
    compute_alike(given.device)
    sizes = TINY if given.tiny else FULL
    models = given.cells.split(",")
    batches = [int(each) for each in given.batches.split(",") if each] or list(sizes.graph_batch_sizes)
    results = ResultsFile("gpu-raw", given.results, device=given.device, sizes=sizes.name)
    with scratch("gpu-raw") as directory:
        repository = write_repository(given.repository or directory, given.device, sizes, models, [OVERLAP])
        modes = given.modes.split(",")
        left_out: list[str] = []
        pending = len(models) * len(batches)
        for model in models:
            raw = RawModel(spec_of(model, sizes), repository / model / "1" / FILE, given.device)
            # Largest first: the pool of the smaller graphs then fits into what is reserved.
            for batch in sorted(batches, reverse=True):
                left = ends - time.monotonic()
                if left < 0:
                    left_out.append(f"{model} ×{batch}")
                    continue
                # What is measured one at a time beside a replay takes a third more.
                round_seconds = given.seconds * (len(modes) + (REPLAY in modes) / 3)
                for _ in range(rounds_within(left, given.rounds, pending * round_seconds)):
                    for mode in modes:
                        results.add(model=model, **raw.measure(mode, batch, given.seconds))
                pending -= 1
                print(f"{model} ×{batch} done", file=sys.stderr, flush=True)
        results.note(left_out=left_out)
    print(table(results.figures))
    if left_out:
        print(f"left out for --limit: {', '.join(left_out)}")
    shortfall = results.shortfall("raw models", limited=bool(left_out))
    print(shortfall)
    print(f"written: {results.path}")
    return 1 if shortfall else 0


if __name__ == "__main__":
    sys.exit(main())
