"""Files changed after they were signed: each is refused when it is loaded, and the version that is served stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from guarded_servers import ask

from isochrone.secure.signing.signer import Signer
from sample_models import write_config, write_python
from server_process import StartServer
from signed_models import sign_version
from signing_keys import make_key

_CONFIG = """
    backend: "python"
    input { name: "x" data_type: TYPE_FP32 dims: [1] }
    output { name: "y" data_type: TYPE_FP32 dims: [1] label_filename: "labels.txt" }
    version_policy { all { } }
"""
_SOURCE = "class Model:\n    def infer(self, inputs):\n        return {'y': inputs['x'] + %d}\n"


def _replace(name: str, text: str) -> Callable[[Path], None]:
    return lambda model: (model / name).write_text(text) and None


def _edit(name: str, position: int) -> Callable[[Path], None]:
    def flip(model: Path) -> None:
        data = bytearray((model / name).read_bytes())
        data[position] ^= 1
        (model / name).write_bytes(data)

    return flip


def _link(name: str) -> Callable[[Path], None]:
    def link(model: Path) -> None:
        other = model.parent.parent / "elsewhere"
        other.write_text(_SOURCE % 100)
        (model / name).unlink()
        (model / name).symlink_to(other)

    return link


TAMPERED: dict[str, Callable[[Path], None]] = {
    "another model file": _replace("2/model.py", _SOURCE % 100),
    "a bit of the model file": _edit("2/model.py", 3),
    "a model file cut short": _replace("2/model.py", ""),
    "a file beside the model": _replace("2/helper.py", "x = 1\n"),
    "another configuration": lambda model: write_config(model, _CONFIG.replace("FP32", "FP64")),
    "a bit of the configuration": _edit("config.pbtxt", -2),
    "other labels": _replace("labels.txt", "wolf\nsheep\n"),
    "a bit of the signature": _edit("2.sig", 40),
    "an empty signature": _replace("2.sig", ""),
    "the signature of another version": lambda model: (
        (model / "2.sig").write_bytes((model / "1.sig").read_bytes()) and None
    ),
    "no signature": lambda model: (model / "2.sig").unlink(),
    "a link in place of the model file": _link("2/model.py"),
}


def test_what_was_changed_is_not_loaded(tmp_path: Path, server_factory: StartServer, tried: Counter[str]) -> None:
    key = make_key(tmp_path)
    signer = Signer(key.private)
    models = {f"signed_{number}": change for number, change in enumerate(TAMPERED.values())}
    for name in models:
        model = tmp_path / "models" / name
        write_config(model, _CONFIG)
        (model / "labels.txt").write_text("cat\ndog\n")
        write_python(model, _SOURCE % 1)
        sign_version(signer, model)
    words = ("--require-signatures", str(key.public), "--model-control-mode", "explicit", "--load-model", "*")
    with server_factory(tmp_path / "models", *words) as server:

        def answer(name: str) -> tuple[int, bytes]:
            body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [3]}]}
            status, _, text = ask(server.http_port, "POST", f"/v2/models/{name}/versions/1/infer", None, body)
            return status, text.partition(b'"data":')[2][:3]

        for name, change in models.items():
            assert answer(name) == (200, b"[4.")
            model = tmp_path / "models" / name
            write_python(model, _SOURCE % 2, 2)
            sign_version(signer, model, 2)
            change(model)
            ask(server.http_port, "POST", f"/v2/repository/models/{name}/load", None, {})
            assert answer(name) == (200, b"[4."), "the version that is served stays"
            assert ask(server.http_port, "GET", f"/v2/models/{name}/versions/2/ready")[0] == 400, name
            tried["signed files changed after they were signed"] += 1
