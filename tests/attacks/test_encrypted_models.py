"""Encrypted models whose files somebody changed: a real worker loads none of them, and runs no byte of them."""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from guarded_servers import ask

from encrypted_models import OTHER_KEY, encrypt_model, write_key
from isochrone.models.repository.encrypted.in_memory import is_in_memory
from isochrone.models.repository.encrypted.names import HEADER
from sample_models import write_config, write_python
from server_process import StartServer

pytestmark = pytest.mark.skipif(not is_in_memory("/dev/shm"), reason="/dev/shm is no tmpfs here")

_CONFIG = """
    backend: "python"
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""


def _source(trace: Path) -> str:
    code = 'class Model:\n    def infer(self, inputs): return {"y": inputs["x"]}\n'
    return f"import pathlib\npathlib.Path({str(trace)!r}).touch()\n{code}"


def test_changed_files_are_never_run(tmp_path: Path, server_factory: StartServer, tried: Counter[str]) -> None:
    models, key, trace = tmp_path / "models", write_key(tmp_path), tmp_path / "trace"
    model, kept = models / "m", tmp_path / "kept"
    write_config(model, _CONFIG)
    write_python(model, _source(trace))
    encrypt_model(key, model)
    shutil.copytree(model, kept)
    # The attacker can encrypt with a key of their own, and knows other versions that the right key encrypted.
    for name, source in (("mallory", write_key(tmp_path, "mallory.key", OTHER_KEY)), ("n", key)):
        write_config(models / name, _CONFIG)
        write_python(models / name, _source(trace))
        encrypt_model(source, models / name)
    file, header, wrapped = model / "1" / "model.py.encrypted", model / "1" / HEADER, model / "1.wrapped-key"
    content, listed = file.read_bytes(), header.read_text()

    def attempt(what: str, change: Callable[[], object]) -> None:
        change()
        status, *_, answer = ask(server.http_port, "POST", "/v2/repository/models/m/load", {}, b"{}")
        assert (status, trace.exists()) == (400, False), (what, answer)
        tried[what] += 1
        shutil.rmtree(model)
        shutil.copytree(kept, model)

    words = ("--model-control-mode", "explicit", "--no-strict-readiness", "--model-key", key, "--require-encryption")
    with server_factory(models, *words) as server:
        for at in range(len(content)):
            changed = bytearray(content)
            changed[at] ^= 0x10
            attempt("encrypted model: a bit of a file", lambda: file.write_bytes(changed))  # noqa: B023
        for size in (0, 1, 60, len(content) - 16, len(content) - 1):
            attempt("encrypted model: a cut file", lambda: file.write_bytes(content[:size]))  # noqa: B023
        name = "encrypted model: files of another version"
        attempt(name, lambda: shutil.copy(models / "n" / "1" / file.name, file))
        attempt(name, lambda: shutil.copytree(models / "n" / "1", model / "1", dirs_exist_ok=True))
        attempt(
            name,
            lambda: (
                shutil.copytree(models / "n" / "1", model / "1", dirs_exist_ok=True),
                shutil.copy(models / "n" / "1.wrapped-key", wrapped),
            ),
        )
        name = "encrypted model: encrypted by somebody else"
        attempt(
            name,
            lambda: (
                shutil.copytree(models / "mallory" / "1", model / "1", dirs_exist_ok=True),
                header.write_text(header.read_text().replace('"mallory"', '"m"')),
                shutil.copy(models / "mallory" / "1.wrapped-key", wrapped),
            ),
        )
        attempt(name, lambda: shutil.copy(models / "mallory" / "1.wrapped-key", wrapped))
        name = "encrypted model: a header or wrapped key that was made up"
        attempt(name, lambda: header.write_text(listed.replace('"files": {', '"files": {"../../../x": 0,')))
        attempt(name, lambda: header.write_text(listed.replace('"format": 1', '"format": 0')))
        attempt(name, lambda: header.write_text("[" * 100_000))
        record = json.loads(wrapped.read_text())
        for wrong in ("", base64.b64encode(bytes(60)).decode(), "%"):
            attempt(name, lambda: wrapped.write_text(json.dumps(record | {"wrapped": wrong})))  # noqa: B023
        attempt(name, lambda: wrapped.write_text(json.dumps(record | {"by": "command"})))
        name = "encrypted model: plain files"
        attempt(name, lambda: (model / "1" / "model.py").write_text(_source(trace)))
        attempt(name, lambda: (model / "1" / "numpy.py").write_text(_source(trace)))
        attempt(name, lambda: (shutil.rmtree(model / "1"), write_python(model, _source(trace))))
        # What the owner encrypted is loaded all the same.
        assert ask(server.http_port, "POST", "/v2/repository/models/m/load", {}, b"{}")[0] == 200
        assert trace.exists()
