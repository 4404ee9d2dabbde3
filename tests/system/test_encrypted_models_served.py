"""Real workers with ``--model-key``: they serve encrypted models, and their plain text reaches no disk."""

from __future__ import annotations

import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import onnx
import psutil
import pytest

from encrypted_models import KEY, encrypt_model, write_key
from generation_models import write_sample
from isochrone.models.repository.encrypted.in_memory import is_in_memory
from isochrone.models.repository.encrypted.writing import rewrap_version
from isochrone.secure.encryption.model_keys import ModelKeys
from isochrone.secure.sandbox.support import present_support
from isochrone.secure.signing.signer import Signer
from sample_models import write_config, write_models, write_python
from server_process import ServerProcess, StartServer
from signed_models import sign_version
from signing_keys import make_key
from watching import wait_for

pytestmark = pytest.mark.skipif(not is_in_memory("/dev/shm"), reason="/dev/shm is no tmpfs here")

#: Of files that may have plain text, and when they were written.
_LARGEST, _RECENT_SECONDS = 16 << 20, 600.0
#: Of this run: the files of other runs, and of Python's cache, have another one.
_MARKER = f"plain-text-of-the-model-{secrets.token_hex(8)}"
_CONFIG = """
    backend: "python"
    input { name: "x" data_type: TYPE_STRING dims: [1] }
    output { name: "y" data_type: TYPE_STRING dims: [1] }
"""
#: Runs the source that it is sent.
_SOURCE = f"""
    import numpy as np
    MARKER = "{_MARKER}"

    class Model:
        def infer(self, inputs):
            scope = {{"__file__": __file__, "MARKER": MARKER}}
            exec(inputs["x"].flat[0].decode(), scope)
            return {{"y": np.array([str(scope.get("result")).encode()], object)}}
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    models = write_models(tmp_path / "models", "add_sub")
    path = models / "add_sub" / "1" / "model.onnx"
    # An ONNX file has a place for any text.
    graph = onnx.load(path)
    graph.doc_string = _MARKER
    onnx.save(graph, path)
    for name in ("code", "other"):
        write_config(models / name, _CONFIG)
        write_python(models / name, _SOURCE)
    for model in models.iterdir():
        encrypt_model(write_key(tmp_path), model)
    return models


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TMPDIR of the workers, on a disk."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    return place


def call(port: int, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def run_in(server: ServerProcess, model: str, source: str) -> str:
    inputs = [{"name": "x", "shape": [1], "datatype": "BYTES", "data": [source]}]
    status, answer = call(server.http_port, f"/v2/models/{model}/infer", {"inputs": inputs})
    assert status == 200, answer
    return str(answer["outputs"][0]["data"][0])


def index(server: ServerProcess) -> dict[str, dict[str, Any]]:
    rows = call(server.http_port, "/v2/repository/index", {})[1]
    return {row["name"]: row for row in rows}


def with_marker(*places: Path) -> list[Path]:
    """The files with the marker that were written in the last minutes."""
    found, since = [], time.time() - _RECENT_SECONDS
    for place in places:
        for directory, _, names in os.walk(place):
            for path in (Path(directory, name) for name in names):
                try:
                    status = os.lstat(path)
                    if not stat.S_ISREG(status.st_mode) or status.st_mtime < since or status.st_size > _LARGEST:
                        continue
                    if _MARKER.encode() in path.read_bytes():
                        found.append(path)
                except OSError:
                    continue
    return found


def held_by(pid: int) -> set[Path]:
    """The directories of plain text of a worker's processes: each holds the lock of its own."""
    parent = psutil.Process(pid)
    links = (
        link for each in (parent, *parent.children(recursive=True)) for link in Path(f"/proc/{each.pid}/fd").glob("*")
    )
    found = (Path(os.path.realpath(link)) for link in links)
    return {each.parent for each in found if each.parent.name.startswith("isochrone-decrypted-")}


@pytest.mark.long
def test_a_transformer_is_served(tmp_path: Path, server_factory: StartServer) -> None:
    version = write_sample(tmp_path / "models", "llama")
    encrypt_model(write_key(tmp_path), version.parent)
    with server_factory(tmp_path / "models", "--model-key", write_key(tmp_path)) as server:
        assert index(server)["llama"]["state"] == "READY"
        (held,) = held_by(server.pid)
        assert list(held.glob("*/llama/1/model.safetensors"))


def test_models_are_served_and_leave_no_plain_text(
    models: Path, temporary: Path, tmp_path: Path, server_factory: StartServer
) -> None:
    with server_factory(models, "--model-key", write_key(tmp_path)) as server:
        assert {row["state"] for row in index(server).values()} == {"READY"}
        inputs = [
            {"name": name, "shape": [1, 16], "datatype": "FP32", "data": [3] * 16} for name in ("INPUT0", "INPUT1")
        ]
        status, answer = call(server.http_port, "/v2/models/add_sub/infer", {"inputs": inputs})
        assert (status, answer["outputs"][0]["data"]) == (200, [6] * 16)
        assert run_in(server, "code", "result = __file__").endswith("/code/1/model.py")
        assert with_marker(models, temporary, Path("/tmp"), Path.cwd()) == []
        # The marker can be found where it is.
        (held,) = held_by(server.pid)
        assert len(with_marker(held)) >= 3
        assert KEY not in server.log_text()
        # Crash dumps would have keys and plain models.
        assert int(Path(f"/proc/{server.pid}/coredump_filter").read_text(), 16) == 0
        assert psutil.Process(server.pid).rlimit(psutil.RLIMIT_CORE) == (0, 0)
        assert KEY not in " ".join(psutil.Process(server.pid).cmdline())
    assert not held.exists()


def test_the_plain_text_goes_with_the_version(models: Path, tmp_path: Path, server_factory: StartServer) -> None:
    words = ("--model-control-mode", "explicit", "--model-key", write_key(tmp_path))
    with server_factory(models, *words) as server:
        for _ in range(2):
            assert call(server.http_port, "/v2/repository/models/code/load", {})[0] == 200
        (held,) = held_by(server.pid)
        # The second load found the first one's.
        assert len(with_marker(held)) == 1
        assert call(server.http_port, "/v2/repository/models/code/unload", {})[0] == 200
        wait_for(lambda: not with_marker(held))


def test_what_a_killed_worker_left_goes_at_the_next_start(
    models: Path, tmp_path: Path, server_factory: StartServer
) -> None:
    words = ("--model-key", write_key(tmp_path))
    command = [str(Path(sys.executable).with_name("isochrone")), "serve", str(models), "--host", "127.0.0.1"]
    ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    with subprocess.Popen([*command, *ports, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        while b" ready " not in (line := process.stdout.readline()):
            assert line, "the worker ended"
        (left,) = held_by(process.pid)
        assert with_marker(left)
        process.send_signal(signal.SIGKILL)
    assert left.exists()
    # Also where it loads nothing.
    with server_factory(models, *words, "--model-control-mode", "explicit"):
        assert not left.exists()


@pytest.mark.skipif(bool(present_support().missing()), reason="the kernel cannot confine models")
def test_confined_models_read_their_own_plain_text_alone(
    models: Path, tmp_path: Path, server_factory: StartServer
) -> None:
    with server_factory(models, "--sandbox", "--model-key", write_key(tmp_path)) as server:
        (held,) = held_by(server.pid)
        (own,) = held.glob("*/code")
        (other,) = held.glob("*/other")
        assert run_in(server, "code", "result = open(__file__).read()[:20]").startswith("import numpy")
        assert run_in(server, "code", "result = __file__") == str(own / "1" / "model.py")
        attempts = {
            f"open({str(other / '1' / 'model.py')!r})": "Error",
            f"__import__('os').listdir({str(held)!r})": f"['{own.parent.name}']",
            "__import__('os').listdir('/dev/shm')": f"['{held.name}']",
            f"open({str(own / '1' / 'model.py')!r}, 'a')": "Error",
            f"open({str(own / '1' / 'new.py')!r}, 'w')": "Error",
            f"open({str(tmp_path / 'model.key')!r})": "Error",
        }
        for source, expected in attempts.items():
            guarded = f"try: result = {source}\nexcept Exception as error: result = type(error).__name__"
            assert expected in run_in(server, "code", guarded), source
        assert "MARKER" in (other / "1" / "model.py").read_text()


def test_without_the_key_other_models_serve(models: Path, tmp_path: Path, server_factory: StartServer) -> None:
    write_models(models, "identity_fp32")
    words = ("--model-control-mode", "explicit", "--no-strict-readiness")
    for more, reason in (
        ((), "model 'code' version 1 is encrypted, and this process has no key"),
        (("--model-key", write_key(tmp_path, "other", "aa" * 32)), "which no --model-key has"),
    ):
        with server_factory(models, *words, *more) as server:
            assert call(server.http_port, "/v2/repository/models/identity_fp32/load", {})[0] == 200
            status, answer = call(server.http_port, "/v2/repository/models/code/load", {})
            assert status == 400
            assert reason in answer["error"]
            rows = index(server)
            assert rows["identity_fp32"]["state"] == "READY"
            assert reason in rows["code"]["reason"]


def test_plain_versions_are_refused_where_encryption_is_required(
    models: Path, tmp_path: Path, server_factory: StartServer
) -> None:
    write_models(models, "identity_fp32", "pipeline")
    words = ("--model-control-mode", "explicit", "--no-strict-readiness", "--model-key", write_key(tmp_path))
    with server_factory(models, *words, "--require-encryption") as server:
        assert call(server.http_port, "/v2/repository/models/code/load", {})[0] == 200
        status, answer = call(server.http_port, "/v2/repository/models/identity_fp32/load", {})
        assert status == 400
        assert "model 'identity_fp32' version 1 is refused: it is not encrypted" in answer["error"]


def test_signatures_cover_what_is_encrypted(models: Path, tmp_path: Path, server_factory: StartServer) -> None:
    """A version needs both; another wrapped key changes neither signature nor digest."""
    key = make_key(tmp_path)
    sign_version(Signer(key.private), models / "code")
    source, new = write_key(tmp_path), write_key(tmp_path, "new.key", "3d" * 32)
    words = ("--model-control-mode", "explicit", "--no-strict-readiness", "--require-signatures", str(key.public))
    with server_factory(models, *words, "--model-key", source, "--model-key", new) as server:
        assert call(server.http_port, "/v2/repository/models/code/load", {})[0] == 200
        digest = index(server)["code"]["digest"]
        rewrap_version(models / "code", 1, ModelKeys([source]), ModelKeys([new]))
        assert call(server.http_port, "/v2/repository/models/code/unload", {})[0] == 200
        assert call(server.http_port, "/v2/repository/models/code/load", {})[0] == 200
        assert index(server)["code"]["digest"] == digest
        status, answer = call(server.http_port, "/v2/repository/models/other/load", {})
        assert (status, "it is not signed" in answer["error"]) == (400, True)


def test_several_processes_decrypt_for_themselves(models: Path, tmp_path: Path, server_factory: StartServer) -> None:
    with server_factory(models, "--model-key", write_key(tmp_path), "--processes", "2") as server:
        assert run_in(server, "code", "result = MARKER") == _MARKER
        held = held_by(server.pid)
        assert len(held) == 2
    assert not any(each.exists() for each in held)
