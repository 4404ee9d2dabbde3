"""An idle picker does not poll: the kernel counts how often its process wakes up."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from server_process import ServerProcess

#: Wake-ups per second, of all threads. Without workers, timers of one second are left: about six. A sweep every 10 ms
#: alone is a hundred.
_MOST = 20
#: A process that has just started may still work.
_SECONDS = 30


def wake_ups(pid: int) -> int:
    """How often the threads of a process have waited so far."""
    tasks = Path(f"/proc/{pid}/task")
    lines = [line for task in tasks.iterdir() for line in (task / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_idle_picker_wakes_up_a_few_times_a_second(tmp_path: Path) -> None:
    workers, log_path = tmp_path / "workers", tmp_path / "picker.log"
    workers.write_text("# none yet\n")
    command = [
        str(Path(sys.executable).with_name("isochrone")),
        *("pick", "--listen", "127.0.0.1:0", "--health-port", "0", "--metrics-port", "0", "--log-json"),
        *("--upstream-file", str(workers)),
    ]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    picker = ServerProcess(process, log_path)
    try:
        picker.wait_ready()
        counts: list[int] = []
        # A second in which a busy machine gave it no turn proves nothing: of three in a row, two must be quiet.
        while len(counts) < _SECONDS and sum(count < _MOST for count in counts[-3:]) < 2:
            before = wake_ups(process.pid)
            time.sleep(1)
            counts.append(wake_ups(process.pid) - before)
        assert sum(count < _MOST for count in counts[-3:]) >= 2, counts
        assert picker.terminate() == 0, picker.log_text()[-5000:]
    finally:
        picker.kill()
