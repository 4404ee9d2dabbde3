"""Real workers with ``--require-signatures``: what they load, what they say, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from isochrone.secure.signing.signer import Signer
from sample_models import write_config, write_python
from server_process import StartServer
from signed_models import sign_version
from signing_keys import Key, make_key

_CONFIG = """
    backend: "python"
    max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""
_SOURCE = """
    import pathlib
    pathlib.Path({trace!r}).touch()

    class Model:
        def infer(self, inputs):
            return {{"y": inputs["x"]}}
"""


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return make_key(tmp_path)


@pytest.fixture
def models(tmp_path: Path, key: Key) -> Path:
    """Model ``signed``, and ``unsigned``, whose code leaves the file "trace"."""
    models = tmp_path / "models"
    for name, trace in (("signed", tmp_path / "ran"), ("unsigned", tmp_path / "trace")):
        write_config(models / name, _CONFIG)
        write_python(models / name, _SOURCE.format(trace=str(trace)))
    sign_version(Signer(key.private), models / "signed", source="run-17")
    return models


def call(port: int, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.mark.parametrize("processes", [1, 2])
def test_only_signed_models_are_served(
    models: Path, key: Key, tmp_path: Path, server_factory: StartServer, processes: int
) -> None:
    words = ("--require-signatures", str(key.public), "--model-control-mode", "explicit", "--processes", str(processes))
    with server_factory(models, *words, "--no-strict-readiness") as server:
        assert call(server.http_port, "/v2/repository/models/signed/load", {})[0] == 200
        inputs = [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [3]}]
        status, answer = call(server.http_port, "/v2/models/signed/infer", {"inputs": inputs})
        assert (status, answer["outputs"][0]["data"]) == (200, [3])
        status, answer = call(server.http_port, "/v2/repository/models/unsigned/load", {})
        assert status == 400
        assert "model 'unsigned' version 1 is refused: it is not signed" in answer["error"]
        override = {"parameters": {"config": json.dumps({"backend": "python"})}}
        status, answer = call(server.http_port, "/v2/repository/models/signed/load", override)
        assert status == 400
        assert "nobody signed the configuration and files of a load request" in answer["error"]
        rows = {row["name"]: row for row in call(server.http_port, "/v2/repository/index", {})[1]}
        assert rows["signed"]["provenance"]["source"] == "run-17"
        assert rows["signed"]["provenance"]["signer"].startswith("key sha256:")
        assert "it is not signed" in rows["unsigned"]["reason"]
    assert (tmp_path / "ran").exists()
    assert not (tmp_path / "trace").exists()


def serve(models: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "isochrone", "serve", str(models), "--http-port", "0", "--grpc-port", "0"]
    return subprocess.run([*command, "--metrics-port", "0", *words], capture_output=True, text=True, check=False)


def test_a_start_with_an_unsigned_model_ends_with_the_reason(models: Path, key: Key, tmp_path: Path) -> None:
    ended = serve(models, "--require-signatures", str(key.public))
    assert ended.returncode == 1
    assert "model 'unsigned' version 1 is refused" in ended.stdout + ended.stderr
    assert not (tmp_path / "trace").exists()


def test_files_without_keys_end_the_start(models: Path, key: Key) -> None:
    ended = serve(models, "--require-signatures", str(key.private))
    assert ended.returncode == 1
    assert "expected public keys or certificates in PEM, given private key" in ended.stderr
