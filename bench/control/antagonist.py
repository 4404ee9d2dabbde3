"""``python -m bench.control.antagonist``: a neighbour on the same machine that burns a core in bursts.

Bursts and the pauses between them are drawn from a seed. ``Antagonist`` runs one around a block. Must never outlive the
process that started it.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from types import TracebackType

from bench.worker.peers.process import REPOSITORY_ROOT

_PAUSE_SECONDS = 0.6
_BURST_SECONDS = (0.02, 0.4)


class Antagonist:
    """``with Antagonist(seed): ...``"""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Antagonist:
        words = [sys.executable, "-m", "bench.control.antagonist", "--seed", str(self._seed)]
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd=REPOSITORY_ROOT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def burn(seed: int) -> None:
    draw = random.Random(seed)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(draw.expovariate(1 / _PAUSE_SECONDS))
        ends = time.monotonic() + draw.uniform(*_BURST_SECONDS)
        while time.monotonic() < ends:
            pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.control.antagonist", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    burn(parser.parse_args().seed)
