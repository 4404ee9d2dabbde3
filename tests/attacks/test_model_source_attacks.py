"""Manifests and listings of model sources that name what is outside of them, through a real worker: nothing outside its
cache is written or read, the models that are concerned are refused, and the others are served."""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from guarded_servers import ask, inference

from bench.models.object_store import s3_server
from isochrone.models.sources.manifest import MANIFEST, manifest_of
from sample_models import write_models
from server_process import start_server
from up_process import ISOCHRONE, SECONDS

#: In the name of everything that must not come to be.
TAG = "isochrone-escape-5d1c"
SOURCE = f"open('/tmp/{TAG}-ran', 'w')\nclass Model: ...\n".encode()
PATHS = [
    *(f"../{TAG}", f"../../{TAG}/1/model.py", f"../../../../../../../../tmp/{TAG}", f"/tmp/{TAG}", f"//tmp/{TAG}"),
    *(f"evil/../../{TAG}", f"evil/1/../../../{TAG}", f"evil/1/..\\..\\..\\{TAG}", f"\\\\host\\{TAG}", f"C:\\{TAG}"),
    *(f"evil/1/{TAG}\0.py", f"evil/1/\n{TAG}", f"evil/1/\x7f{TAG}", f"evil/1/\u202e{TAG}", f"evil/./1/{TAG}"),
    *(f"evil//1/{TAG}", f"evil/1/{TAG}/", f"evil/1/{TAG}{'x' * 300}", "..", ".", "", "/", "../", f"good/../{TAG}/1"),
    *(f"good/1/../../{TAG}", f"{'d/' * 5000}../{TAG}", f"./{TAG}", f"~/../{TAG}\\", "good/1/..", f"%2e%2e%2f\\{TAG}"),
]


def entry(path: str, content: bytes = SOURCE, **changes: Any) -> dict[str, Any]:
    return {"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest(), **changes}


@contextmanager
def web_server(manifest: bytes, files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Answers every path that it does not know with the attacker's source. Its address, and what was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urllib.parse.unquote(self.path.partition("?")[0]).removeprefix("/models/")
            asked.append(path)
            content = manifest if path == MANIFEST else files.get(path, SOURCE)
            status = 404 if path == MANIFEST and not manifest else 200
            if given := self.headers.get("Range"):
                start, end = given.removeprefix("bytes=").split("-")
                whole, status = content, 206
                content = whole[int(start) : int(end) + 1]
            self.send_response(status)
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{int(start) + len(content) - 1}/{len(whole)}")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/models", asked
        finally:
            server.shutdown()
            thread.join()


def check_that_nothing_escaped(folder: Path) -> None:
    assert not list(Path("/tmp").glob(f"*{TAG}*"))
    assert not list(folder.rglob(f"*{TAG}*"))
    outside = {path.name for path in folder.iterdir()} - {"cache", "models", "worker.log", "store"}
    assert not outside, outside


def test_manifests_with_paths_outside(tmp_path: Path, tried: Counter[str]) -> None:
    repository = write_models(tmp_path / "models", "identity_fp32")
    good = json.loads(manifest_of(repository))["files"]
    files = {each["path"]: (repository / each["path"]).read_bytes() for each in good}
    config = b'backend: "python"\ninput { name: "x" data_type: TYPE_FP32 dims: [1] }\n'
    own = [
        # Of models of their own: each is refused.
        entry("big/config.pbtxt", config),
        entry("big/1/model.py", size=1 << 62),
        entry("other/config.pbtxt", config),
        entry("other/1/model.py", b"other bytes than these"),
        entry("twice/config.pbtxt", config),
        entry("twice/1/model.py", b"good"),
        entry("twice/1/model.py", b"evil"),
        entry("mixed/config.pbtxt", config),
        entry("mixed/1"),
        entry("mixed/1/model.py/x"),
    ]
    manifest = json.dumps({"format": 1, "files": [*(entry(path) for path in PATHS), *good, *own]}).encode()
    with web_server(manifest, {**files, **{each["path"]: config for each in own if "config" in each["path"]}}) as (
        url,
        asked,
    ):
        flags = ("--model-cache", str(tmp_path / "cache"), "--model-control-mode", "explicit")
        log = tmp_path / "worker.log"
        source: Any = url
        with start_server(source, *flags, "--load-model", "identity_fp32", log_path=log) as worker:
            assert ask(worker.http_port, "POST", "/v2/models/identity_fp32/infer", {}, inference())[0] == 200
            for model in ("evil", "big", "other", "twice", "mixed", f"..%2f{TAG}", f"%2ftmp%2f{TAG}", "good", "d"):
                status, _, answer = ask(worker.http_port, "POST", f"/v2/repository/models/{model}/load", {}, {})
                # 500: what is fetched has not the bytes that are stated, or does not fit.
                assert status in (400, 404, 500), (model, status, answer)
                assert b"Error in" not in answer
                tried["model sources: models of manifests that lie"] += 1
            index = json.loads(ask(worker.http_port, "POST", "/v2/repository/index")[2])
            assert [row["name"] for row in index if row.get("state") == "READY"] == ["identity_fp32"]
            assert ask(worker.http_port, "POST", "/v2/models/identity_fp32/infer", {}, inference())[0] == 200
    assert not [path for path in asked if TAG in path or ".." in path.split("/")]
    tried["model sources: paths of manifests → named, never fetched"] += len(PATHS)
    check_that_nothing_escaped(tmp_path)


def test_manifests_that_are_none(tmp_path: Path, tried: Counter[str]) -> None:
    """A worker does not start with them, and says why in one line."""
    for manifest in (b"", b"[" * 1_000_000, b'{"format": 1, "files": [1]}'):
        with web_server(manifest, {}) as (url, _):
            flags = ("--model-cache", str(tmp_path / "cache"), "--http-port", "0", "--grpc-port", "0")
            command = [*ISOCHRONE, "serve", url, *flags, "--metrics-port", "0", "--host", "127.0.0.1", "--log-json"]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        assert ended.returncode == 1
        said = ended.stdout + ended.stderr
        assert said.splitlines()[-1].startswith("isochrone serve: "), said
        assert "Traceback" not in said
        tried["model sources: manifests that are none"] += 1
    check_that_nothing_escaped(tmp_path)


def test_listings_with_keys_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: Counter[str]) -> None:
    keys = [
        *(f"models/evil/1/..\\..\\{TAG}", f"models/evil/1/{TAG}\x7f", f"models/evil/1/{'x' * 300}{TAG}"),
        *(
            f"../{TAG}",
            f"/tmp/{TAG}",
            f"other/{TAG}",
            "models/evil/1/\u202emodel.py",
            f"models/evil\\..\\{TAG}/1/model.py",
        ),
    ]
    with s3_server(tmp_path / "store") as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        write_models(store.repository, "identity_fp32")
        store.proxy.stray_keys = keys
        flags = ("--model-cache", str(tmp_path / "cache"), "--model-control-mode", "explicit")
        source: Any = store.url
        with start_server(source, *flags, "--load-model", "identity_fp32", log_path=tmp_path / "worker.log") as worker:
            assert ask(worker.http_port, "POST", "/v2/models/identity_fp32/infer", {}, inference())[0] == 200
            for model in ("evil", f"..%2f{TAG}", f"evil%5C..%5C{TAG}"):
                status, _, answer = ask(worker.http_port, "POST", f"/v2/repository/models/{model}/load", {}, {})
                assert status in (400, 404), (model, status, answer)
                tried["model sources: models of listings with keys outside"] += 1
        assert not [get for get in store.proxy.record.gets if TAG in get.path and "list-type" not in get.path]
        tried["model sources: keys of listings → named, never fetched"] += len(keys)
    check_that_nothing_escaped(tmp_path)
