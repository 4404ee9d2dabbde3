"""``python -m bench.gpu.generation``: text generation through the worker, on a GPU or a CPU.

Parts: *throughput* (continuous batching, static batches, one by one), *prefill* (streams beside long prompts),
*cancel* (how soon a cut stream's blocks are free), *deadlines* (per token, from half to three times of capacity),
*prefix* (one long beginning, many requests) and *transformers* (``generate()`` on the same files). See bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path

from bench.gateway.placement import stay
from bench.gpu.budget import Need, scaled, share
from bench.gpu.figures import ResultsFile
from bench.gpu.generation.load import Generators
from bench.gpu.generation.parts import DEADLINES, PREFILL, THROUGHPUT, deadlines, prefill, throughput
from bench.gpu.generation.report import report
from bench.gpu.generation.repository import SIZES, write_model
from bench.gpu.generation.service import Bench, served
from bench.gpu.generation.single_streams import CANCEL, PREFIX, cancel, prefix
from bench.gpu.generation.transformers_peer import TRANSFORMERS, transformers
from bench.gpu.load.cores import split_cores
from bench.gpu.progress import say
from bench.worker.peers.process import scratch

#: With the time of each on a GPU, loads included.
PARTS = {
    THROUGHPUT: (throughput, Need(35, 130)),
    PREFILL: (prefill, Need(25, 90)),
    CANCEL: (cancel, Need(20, 25)),
    DEADLINES: (deadlines, Need(30, 125)),
    PREFIX: (prefix, Need(20, 30)),
    TRANSFORMERS: (transformers, Need(35, 140)),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.generation", description=__doc__)
    parser.add_argument("--repository", type=Path, help="where models are kept; made where missing")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--model", choices=tuple(SIZES), help="default: small, on a CPU cpu")
    parser.add_argument("--tiny", action="store_true", help="the model tiny")
    parser.add_argument("--cells", default="", help="patterns: throughput/continuous/*,prefill/*; all if left out")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured, of each cell")
    parser.add_argument("--warm", type=float, default=2.0, help="seconds before them, of closed loops")
    parser.add_argument("--rounds", type=int, default=1, help="of each cell, while its variant is loaded")
    parser.add_argument("--streams", default="1,8,32,64,128,256", help="of throughput; static batches have up to 64")
    parser.add_argument("--long-rate", type=float, help="long prompts per second; default: 30 %% of the device")
    parser.add_argument("--factors", default="0.5,1,2,3", help="of capacity, of deadlines")
    parser.add_argument("--first-ms", type=float, help="deadline of the first token; default: 20 times the other")
    parser.add_argument("--between-ms", type=float, help="deadline between tokens; default: twice the p99 at capacity")
    parser.add_argument(
        "--grace",
        type=float,
        default=3.0,
        help="least seconds for answers after the last arrival; the longest that keeps its deadlines has its time",
    )
    parser.add_argument("--cuts", type=int, default=10, help="of cancel")
    parser.add_argument("--groups", type=int, default=5, help="of prefix: beginnings, with eight requests each")
    parser.add_argument("--generators", type=int, default=6, help="processes")
    parser.add_argument("--server-cores", type=int, default=6)
    parser.add_argument("--load-timeout", type=float, default=180.0)
    parser.add_argument("--peer-limit", type=float, default=90.0, help="seconds of each mode of transformers")
    parser.add_argument(
        "--limit", type=float, default=540.0, help="seconds from the start: each part has a share; none is begun later"
    )
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    given.sizes = SIZES["tiny" if given.tiny else given.model or ("cpu" if given.device == "cpu" else "small")]
    try:
        given.streams = [int(each) for each in given.streams.split(",")]
        given.factors = [float(each) for each in given.factors.split(",")]
    except ValueError as error:
        parser.error(f"--streams, --factors: expected numbers with commas between them: {error}")
    patterns = [each.strip() for each in given.cells.split(",") if each.strip()]
    for pattern in patterns:
        if pattern.partition("/")[0] not in PARTS:
            parser.error(f"--cells: expected a part of {', '.join(PARTS)}, given {pattern}")
    given.wanted = lambda cell: (
        not patterns or any(fnmatchcase(cell, pattern) or fnmatchcase(cell, f"{pattern}/*") for pattern in patterns)
    )
    given.parts = [part for part in PARTS if not patterns or part in {each.partition("/")[0] for each in patterns}]
    planned = sum(PARTS[part][1].full for part in given.parts)
    given.seconds = scaled(given.limit, planned, given.seconds, least=2.0)
    given.say = say
    return given


def main() -> int:
    given = arguments()
    ends = time.monotonic() + given.limit
    cores = sorted(os.sched_getaffinity(0))
    of_server, of_generators = split_cores(cores, given.server_cores)
    sizes = given.sizes
    results = ResultsFile(f"gpu-generation-{sizes.name}", given.results, device=given.device, sizes=vars(sizes))
    with scratch("gpu-generation") as directory:
        began = time.monotonic()
        version = write_model((given.repository or directory) / "generation", sizes)
        say(f"model {sizes.name}: {time.monotonic() - began:.1f} s")
        repository = directory / "models"
        repository.mkdir()
        stay(frozenset(of_server))  # the worker inherits it
        with served(repository, directory, given.load_timeout) as server:
            stay(frozenset(cores))
            count = min(given.generators, len(of_generators))
            with Generators(count, of_generators, version / "tokenizer.json") as generators:
                bench = Bench(given, server, generators, results, version, repository, ends)
                for number, name in enumerate(given.parts):
                    left = ends - time.monotonic()
                    needs = [PARTS[each][1] for each in given.parts[number:]]
                    bench.ends = time.monotonic() + share(left, needs)
                    PARTS[name][0](bench)
                results.note(left_out=bench.left_out, seconds=given.seconds)
            results.note(worker_log=server.last_lines(20))
    text, failed = report(results.figures)
    print(text)
    if bench.left_out:
        print(f"left out for --limit: {', '.join(dict.fromkeys(bench.left_out))}")
    # That of transformers may be missing: it is measured where the package is installed.
    parts = [part for part in given.parts if part != TRANSFORMERS]
    limited = {cell.partition("/")[0] for cell in bench.left_out}
    missing = [results.shortfall(part, limited=part in limited, part=part) for part in parts]
    print("\n".join(filter(None, missing)))
    print(f"written: {results.path}")
    return 1 if failed or any(missing) else 0


if __name__ == "__main__":
    sys.exit(main())
