"""The child process of ``children``: ``python -m isochrone.optimize.trials.child PARENT REQUEST ANSWER``."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from isochrone.worker.backends.processes.child_side import begin


def main(parent: int, request: Path, answer: Path) -> None:
    begin(parent)
    given = json.loads(request.read_text())
    if given["memory"]:
        # Of data, not of addresses: runtimes reserve addresses that they never use.
        resource.setrlimit(resource.RLIMIT_DATA, (given["memory"], given["memory"]))
    from isochrone.errors import IsochroneError
    from isochrone.optimize.trials import child_tasks

    try:
        found = child_tasks.TASKS[given["task"]](**given["arguments"])
    except MemoryError:
        found = {"failed": f"needed more than {given['memory'] / 2**30:.1f} GiB of memory"}
    except Exception as error:  # the answer is its reason
        text = str(error)
        plain = isinstance(error, ValueError | IsochroneError) and text
        found = {"failed": text if plain else f"{type(error).__name__}: {text}"}
    answer.write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
    sys.stdout.flush()
    # Finalizers of runtimes have crashed processes whose answer is written.
    os._exit(0)
