"""`python -m bench.realistic.many_models_memory`: a million requests with ids over 200 models; memory must stay flat.

Half of them over HTTP, half over gRPC, in turns; every id is new. Growth is the worker's resident memory at the end,
over that after the first tenth, when every model has been asked and every buffer has its size.
"""

import argparse
import sys
import time
from pathlib import Path

from bench.realistic.cells import GRPC, HTTP, Cell
from bench.realistic.load import measure
from bench.realistic.messages import Message, grpc_message, http_message
from bench.realistic.models import WIDTH, write_copies, write_files
from bench.realistic.servers import serve
from bench.worker.machine import RESULTS
from bench.worker.peers.process import scratch

LIMIT_PERCENT = 2.0


class ManyModels(Cell):
    """A cell over many copies of the smallest model."""

    def messages(self) -> list[Message]:
        make = http_message if self.transport == HTTP else grpc_message
        return [make(f"copy_{number:03}", (1, WIDTH), bytes(4 * WIDTH), with_id=True) for number in range(self.models)]

    @property
    def models(self) -> int:
        return int(self.model)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.realistic.many_models_memory", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    files = write_files(given.results / "realistic-onnx")
    begun, sent, warm = time.monotonic(), 0, 0
    with scratch("many-models") as directory:
        repository = write_copies(directory / "models", files["small"], given.models)
        with serve(repository, directory) as peer:
            while sent < given.requests:
                for transport in (HTTP, GRPC):
                    cell = ManyModels("ids", str(given.models), transport, 32)
                    sent += measure(peer, cell, 2.0, directory).requests
                resident = peer.resident_bytes()
                if not warm and sent >= given.requests // 10:
                    warm = resident
                print(f"{sent:9,} requests: {resident / 1e6:.1f} MB", file=sys.stderr, flush=True)
    growth = 100 * (resident / warm - 1)
    verdict = "MET" if growth <= LIMIT_PERCENT else "MISSED"
    print(
        f"{verdict}: {sent:,} requests with ids over {given.models} models in {time.monotonic() - begun:.0f} s: "
        f"{warm / 1e6:.1f} MB after a tenth, {resident / 1e6:.1f} MB at the end "
        f"({growth:+.1f} %, limit {LIMIT_PERCENT} %)"
    )
    return 0 if growth <= LIMIT_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
