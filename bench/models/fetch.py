"""One version to several workers of one machine from an S3 server: fetched once, resumed after kill -9, verified.

    python -m bench.models.fetch --gigabytes 2 --workers 4 [--out FILE.json]

Prints what the server sent and how long it took, beside the same bytes read by one plain connection. The store is
``rclone serve s3`` on the same machine behind a counting proxy (``object_store``), so that the figures say nothing of a
network: they show how often bytes are sent, and what the cache adds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from bench.models.object_store import S3, s3_server
from isochrone.models.sources.cache.ranges import RANGE_BYTES
from isochrone.models.sources.manifest import MANIFEST, manifest_of

_MODEL = "large"
_CONFIG = """
name: "large"
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
"""
_SOURCE = """
class Model:
    def infer(self, inputs):
        return {"Y": inputs["X"]}
"""
_START_SECONDS = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="isochrone-fetch-") as name:
        figures = run(Path(name), int(given.gigabytes * 1e9), given.workers)
    text = json.dumps(figures, indent=2)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


def run(directory: Path, size: int, workers: int) -> dict[str, Any]:
    # rclone reads a whole file for its ETag at every listing: without it, the manifest states the digests.
    with s3_server(directory / "store", "--etag-hash", "") as s3:
        os.environ.update(s3.environment)
        _write_model(s3, size)
        figures: dict[str, Any] = {"bytes": size, "workers": workers}
        figures["plain_read_seconds"] = round(_plain_read(s3), 2)

        since = len(s3.proxy.record.gets)
        begun = time.monotonic()
        with contextlib.ExitStack() as stack:
            logs = [stack.enter_context(_worker(s3, directory, f"w{number}", "once")) for number in range(workers)]
            ready = [_ready(log, process) - begun for log, process in logs]
        figures["all_ready_seconds"] = round(max(ready), 2)
        lines = [line for log, _ in logs for line in log.read_text().splitlines() if '"event": "fetched"' in line]
        figures["fetch_seconds"] = [json.loads(line)["seconds"] for line in lines]
        figures["requested_by_all_workers"] = s3.proxy.record.requested("weights.bin", since)
        begun = time.monotonic()
        with _worker(s3, directory, "warm", "once") as (log, process):
            figures["from_the_cache_seconds"] = round(_ready(log, process) - begun, 2)

        figures["resumed"] = _resume(s3, directory, size)
        figures["wrong_byte"] = _wrong_byte(s3, directory)
    return figures


def _write_model(s3: S3, size: int) -> None:
    version = s3.repository / _MODEL / "1"
    version.mkdir(parents=True)
    (s3.repository / _MODEL / "config.pbtxt").write_text(_CONFIG)
    (version / "model.py").write_text(_SOURCE)
    with (version / "weights.bin").open("wb") as file:
        left = size
        while left:
            left -= file.write(os.urandom(min(left, 1 << 24)))
    (s3.repository / MANIFEST).write_bytes(manifest_of(s3.repository))


def _plain_read(s3: S3) -> float:
    """Seconds to read the object through the same proxy over one connection, and to keep nothing."""
    begun = time.monotonic()
    store = S3Store("bucket", client_options={"allow_http": True, "timeout": "600s"})
    for _ in obstore.get(store, f"models/{_MODEL}/1/weights.bin").stream(1 << 20):
        pass
    return time.monotonic() - begun


@contextlib.contextmanager
def _worker(s3: S3, directory: Path, name: str, cache: str) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    log = directory / f"{name}.log"
    command = [sys.executable, "-m", "isochrone", "serve", s3.url, "--host", "127.0.0.1", "--log-json"]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    command += ["--model-cache", str(directory / cache)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield log, process
        finally:
            process.terminate()


def _ready(log: Path, process: subprocess.Popen[bytes]) -> float:
    """The instant of readiness."""
    ends = time.monotonic() + _START_SECONDS
    while '"event": "ready"' not in log.read_text():
        if process.poll() is not None or time.monotonic() > ends:
            raise RuntimeError(log.read_text()[-2000:])
        time.sleep(0.02)
    return time.monotonic()


def _resume(s3: S3, directory: Path, size: int) -> dict[str, int]:
    """Killed in the middle; what was sent before and after."""
    sent = s3.proxy.record.of("weights.bin")
    with _worker(s3, directory, "killed", "resumed") as (_, process):
        while s3.proxy.record.of("weights.bin") - sent < size // 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    (journal,) = (path for path in (directory / "resumed" / "downloads").glob("*.journal") if path.stat().st_size)
    kept = min(size, len(journal.read_bytes().splitlines()) * RANGE_BYTES)
    before, since = s3.proxy.record.of("weights.bin") - sent, len(s3.proxy.record.gets)
    with _worker(s3, directory, "again", "resumed") as (log, process):
        _ready(log, process)
    after = s3.proxy.record.requested("weights.bin", s3.proxy.record.next_start(since))
    return {"sent_before_the_kill": before, "kept": kept, "requested_after": after}


def _wrong_byte(s3: S3, directory: Path) -> dict[str, Any]:
    """One byte of one range is changed on the way: nothing loads."""
    last = f"bytes={(s3.repository / _MODEL / '1' / 'weights.bin').stat().st_size // RANGE_BYTES * RANGE_BYTES}-"
    s3.proxy.plan = lambda served: "wrong byte" if served.range.startswith(last) else ""
    with _worker(s3, directory, "wrong", "wrong") as (log, process):
        status = process.wait(_START_SECONDS)
    said = next(line for line in log.read_text().splitlines() if "failed to load" in line)
    return {"exit_status": status, "error": json.loads(said)["error"]}


if __name__ == "__main__":
    main()
