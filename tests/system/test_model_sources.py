"""Real workers that serve models from a real S3 server: fetched once, resumed, verified, and the store away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.models.object_store import S3, s3_server
from isochrone.models.sources.cache.ranges import RANGE_BYTES
from sample_models import write_models
from server_process import ServerProcess, start_server

_SECONDS = 60.0


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    with s3_server(tmp_path / "store") as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store


def until(look: Callable[[], Any], what: str) -> Any:
    ends = time.monotonic() + _SECONDS
    while not (found := look()):
        assert time.monotonic() < ends, f"waited {_SECONDS:g} s in vain for {what}"
        time.sleep(0.02)
    return found


def serve(s3: S3, tmp_path: Path, name: str, *arguments: str) -> contextlib.AbstractContextManager[ServerProcess]:
    cache = ("--model-cache", str(tmp_path / "cache"))
    return start_server(s3.url, *cache, *arguments, log_path=tmp_path / f"{name}.log")  # type: ignore[arg-type]


def call(server: ServerProcess, path: str, body: object = None) -> Any:
    request = urllib.request.Request(
        f"http://{server.http_url}{path}", json.dumps(body or {}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return json.loads(error.read())


def index(server: ServerProcess) -> dict[str, tuple[str, str]]:
    """Model → state and reason of its only row."""
    rows = call(server, "/v2/repository/index")
    return {row["name"]: (row.get("state", ""), row.get("reason", "")) for row in rows}


def add_weights(s3: S3, ranges: int) -> int:
    """A model with a large file; its size."""
    write_models(s3.repository, "add_sub")
    size = ranges * RANGE_BYTES
    (s3.repository / "add_sub" / "1" / "weights.bin").write_bytes(os.urandom(size))
    return size


@pytest.mark.long
def test_four_workers_fetch_a_version_once(s3: S3, tmp_path: Path) -> None:
    size = add_weights(s3, 4)
    with contextlib.ExitStack() as stack:
        for number in range(4):
            server = stack.enter_context(serve(s3, tmp_path, f"worker-{number}"))
            assert index(server)["add_sub"][0] == "READY"
    assert s3.proxy.record.requested("weights.bin") == size
    assert s3.proxy.record.requested("model.onnx") == (s3.repository / "add_sub" / "1" / "model.onnx").stat().st_size


@pytest.mark.long
def test_workers_that_start_together_wait_for_one_fetch(s3: S3, tmp_path: Path) -> None:
    size = add_weights(s3, 4)
    s3.proxy.bytes_per_second = 8e6
    explicit = ("--model-control-mode", "explicit")
    with serve(s3, tmp_path, "one", *explicit) as one, serve(s3, tmp_path, "two", *explicit) as two:
        command = [sys.executable, "-c", "import sys, urllib.request as r; r.urlopen(sys.argv[1], b'{}')"]
        loads = [
            subprocess.Popen([*command, f"http://{server.http_url}/v2/repository/models/add_sub/load"])
            for server in (one, two)
        ]
        reasons: set[str] = set()

        def both_said() -> bool:
            for server in (one, two):
                state, reason = index(server).get("add_sub", ("", ""))
                if state == "LOADING":
                    reasons.add(reason.split(" ")[0])
            return reasons >= {"fetching", "waiting"}

        until(both_said, "one worker that fetches and one that waits")
        s3.proxy.bytes_per_second = 0.0
        assert [load.wait(_SECONDS) for load in loads] == [0, 0]
        assert [index(server)["add_sub"] for server in (one, two)] == [("READY", ""), ("READY", "")]
    assert s3.proxy.record.requested("weights.bin") == size


@pytest.mark.long
def test_a_fetch_is_resumed_after_kill_9(s3: S3, tmp_path: Path) -> None:
    ranges = 12
    size = add_weights(s3, ranges)
    s3.proxy.bytes_per_second = 8e6
    log = tmp_path / "killed.log"
    command = [str(Path(sys.executable).with_name("isochrone")), "serve", s3.url, "--http-port", "0"]
    command += [
        "--no-allow-grpc",
        "--no-allow-metrics",
        "--host",
        "127.0.0.1",
        "--model-cache",
        str(tmp_path / "cache"),
    ]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as killed:

        def finished() -> int:
            journals = list((tmp_path / "cache" / "downloads").glob("*.journal"))
            return max((len(journal.read_bytes().splitlines()) for journal in journals), default=0)

        until(lambda: finished() >= 4, "four ranges")
        killed.send_signal(signal.SIGKILL)
    kept = finished()
    assert kept < ranges
    s3.proxy.bytes_per_second = 0.0
    since = len(s3.proxy.record.gets)
    with serve(s3, tmp_path, "resumed") as server:
        assert index(server)["add_sub"][0] == "READY"
    start = s3.proxy.record.next_start(since)
    assert s3.proxy.record.requested("weights.bin", start) == size - kept * RANGE_BYTES


def test_a_wrong_byte_loads_nothing_and_others_serve(s3: S3, tmp_path: Path) -> None:
    write_models(s3.repository, "add_sub", "double")
    s3.proxy.plan = lambda served: "wrong byte" if served.path.endswith("add_sub/1/model.onnx") else ""
    with serve(s3, tmp_path, "worker", "--no-exit-on-error") as server:
        states = index(server)
        assert states["double"][0] == "READY"
        state, reason = states["add_sub"]
        assert state == "UNAVAILABLE"
        assert "s3://bucket/models/add_sub/1/model.onnx" in reason
        assert "wrong bytes" in reason


def test_a_prefix_without_objects_is_no_repository(s3: S3, tmp_path: Path) -> None:
    write_models(s3.repository, "add_sub")
    command = [sys.executable, "-m", "isochrone", "serve", f"{s3.url}z", "--host", "127.0.0.1", "--http-port", "0"]
    command += ["--no-allow-grpc", "--no-allow-metrics", "--model-cache", str(tmp_path / "cache")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    assert ended.returncode == 1
    assert "model repository s3://bucket/modelsz has no files" in ended.stderr


def test_a_plain_rclone_is_served_from(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3.port}")
    add_weights(s3, 2)
    with serve(s3, tmp_path, "worker", "--model-cache-bytes", "1GiB") as server:
        assert index(server)["add_sub"][0] == "READY"


@pytest.mark.long
def test_a_worker_starts_from_its_cache_while_the_store_is_away(s3: S3, tmp_path: Path) -> None:
    write_models(s3.repository, "add_sub")
    with serve(s3, tmp_path, "first"):
        pass
    s3.proxy.plan = lambda served: "slow down"
    with serve(s3, tmp_path, "second") as server:
        assert index(server)["add_sub"][0] == "READY"


def test_a_worker_stops_in_the_middle_of_a_fetch(s3: S3, tmp_path: Path) -> None:
    add_weights(s3, 4)
    s3.proxy.bytes_per_second = 1e6
    with serve(s3, tmp_path, "worker", "--model-control-mode", "explicit") as server:
        url = f"http://{server.http_url}/v2/repository/models/add_sub/load"
        with subprocess.Popen(
            [sys.executable, "-c", "import sys, urllib.request as r; r.urlopen(sys.argv[1], b'{}')", url],
            stderr=subprocess.DEVNULL,
        ) as load:
            until(lambda: index(server).get("add_sub", ("", ""))[1].startswith("fetching"), "a fetch")
            assert server.terminate() == 0
            assert load.wait(_SECONDS) != 0
