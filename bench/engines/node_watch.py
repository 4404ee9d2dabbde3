"""Writes when Ray begins and ends to count a node as alive: ``python -m bench.engines.node_watch ADDRESS FILE``.

One JSON line for each change: the monotonic clock in nanoseconds, and the addresses that are alive.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

_POLL_SECONDS = 0.02


def main(address: str, path: Path) -> None:
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="CRITICAL")
    before: list[str] = []
    with path.open("w") as file:
        while True:
            alive = sorted(row["NodeManagerAddress"] for row in ray.nodes() if row["Alive"])
            if alive != before:
                file.write(json.dumps([time.monotonic_ns(), alive]) + "\n")
                file.flush()
                before = alive
            time.sleep(_POLL_SECONDS)


def gone_at(path: Path, address: str, since_ns: int) -> int | None:
    """When Ray gave up a node, on the monotonic clock; None: it has not."""
    for line in path.read_text().splitlines():
        at, alive = json.loads(line)
        if at >= since_ns and address not in alive:
            return int(at)
    return None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
