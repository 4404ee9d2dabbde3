"""What the generator does while it sends imports nothing: requests would wait for it, and count that as latency."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import sys
import isochrone.bench.generator_process
from isochrone.bench.recording import Recorder
from isochrone.bench.results.outcomes import OK

recorder = Recorder(0, 10**9)
for number in range(100):
    recorder.record(number, number, -1, 2 * number, OK, 0, "", 0)
before = set(sys.modules)
assert recorder.recent_latencies() == (50, 99)
print(sorted(set(sys.modules) - before))
"""


def test_progress_imports_nothing() -> None:
    result = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "[]\n"
