"""The same small models written twice, for our python backend and for Triton's, and a certificate for TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path

_OURS = {
    "identity": 'class Model:\n    def infer(self, inputs):\n        return {"OUTPUT0": inputs["INPUT0"]}\n',
    "add_sub": (
        "class Model:\n    def infer(self, inputs):\n        a, b = inputs['INPUT0'], inputs['INPUT1']\n"
        "        return {'OUTPUT0': a + b, 'OUTPUT1': a - b}\n"
    ),
    "slow": (
        "import time\n\nclass Model:\n    def infer(self, inputs):\n        time.sleep(0.3)\n"
        '        return {"OUTPUT0": inputs["INPUT0"]}\n'
    ),
}
_OURS["text"] = _OURS["identity"]

_TRITON_HEAD = (
    "import triton_python_backend_utils as pb\n\n\nclass TritonPythonModel:\n"
    "    def execute(self, requests):\n        return [self.one(request) for request in requests]\n\n"
    "    def one(self, request):\n"
    "        given = lambda name: pb.get_input_tensor_by_name(request, name).as_numpy()\n"
)
_TRITON = {
    "identity": _TRITON_HEAD + "        return pb.InferenceResponse([pb.Tensor('OUTPUT0', given('INPUT0'))])\n",
    "add_sub": _TRITON_HEAD
    + "        a, b = given('INPUT0'), given('INPUT1')\n"
    + "        return pb.InferenceResponse([pb.Tensor('OUTPUT0', a + b), pb.Tensor('OUTPUT1', a - b)])\n",
}
_TRITON["text"] = _TRITON["identity"]


def _tensors(kind: str, datatype: str, dims: str, count: int) -> str:
    name = kind.upper()
    return "".join(
        f'{kind} {{ name: "{name}{index}" data_type: {datatype} dims: [ {dims} ] }}\n' for index in range(count)
    )


CONFIGS = {
    "identity": "max_batch_size: 0\n"
    + _tensors("input", "TYPE_FP32", "-1", 1)
    + _tensors("output", "TYPE_FP32", "-1", 1),
    "text": "max_batch_size: 0\n"
    + _tensors("input", "TYPE_STRING", "-1", 1)
    + _tensors("output", "TYPE_STRING", "-1", 1),
    "add_sub": "max_batch_size: 8\n" + _tensors("input", "TYPE_FP32", "4", 2) + _tensors("output", "TYPE_FP32", "4", 2),
    "slow": "max_batch_size: 0\n" + _tensors("input", "TYPE_FP32", "-1", 1) + _tensors("output", "TYPE_FP32", "-1", 1),
}


def _write(directory: Path, sources: dict[str, str]) -> Path:
    for name, source in sources.items():
        version = directory / name / "1"
        version.mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\n{CONFIGS[name]}')
        (version / "model.py").write_text(source)
    return directory


def write_for_worker(directory: Path) -> Path:
    return _write(directory, _OURS)


def write_for_triton(directory: Path) -> Path:
    return _write(directory, _TRITON)


TRITON_MODELS = tuple(_TRITON)


def write_certificate(directory: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key
