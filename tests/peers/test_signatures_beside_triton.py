"""Real Triton serves a signed model as if it were not signed: signatures beside versions are no part of its layout."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from bench.worker.peers import triton
from bench.worker.peers.process import environment_python, scratch
from isochrone.models.repository.repository import Repository
from isochrone.models.repository.signed.copies import VerifiedCopies
from isochrone.secure.signing.signer import Signer
from signed_models import sign_version
from signing_keys import make_key

pytestmark = pytest.mark.peers

_CONFIG = """name: "m"
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
version_policy { all {} }
"""
_SOURCE = """
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        given = [pb.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("Y", each)]) for each in given]
"""


def test_triton_serves_signed_versions_and_says_nothing_of_signatures(tmp_path: Path) -> None:
    key = make_key(tmp_path)
    with scratch("signed") as directory:
        model = directory / "models" / "m"
        for version in (1, 2):
            (model / str(version)).mkdir(parents=True)
            (model / str(version) / "model.py").write_text(_SOURCE)
        (model / "config.pbtxt").write_text(_CONFIG)
        for version in (1, 2):
            sign_version(Signer(key.private), model, version)
        flags = ("--log-verbose=1",)
        with triton.serve_repository(model.parent, environment_python(""), directory, ("m",), flags) as peer:
            request = urllib.request.Request(f"{peer.http_url}/v2/repository/index", b"{}")
            with urllib.request.urlopen(request, timeout=60) as answer:
                rows = json.load(answer)
        assert {(row["version"], row["state"]) for row in rows} == {("1", "READY"), ("2", "READY")}
        said = "".join(path.read_text(errors="replace") for path in directory.glob("*.log"))
        assert "m" in said
        assert ".sig" not in said
        # What Triton did in the repository, such as caches of Python, does not matter.
        found = Repository([model.parent], verified=VerifiedCopies([key.public])).read("m")
        assert list(found.provenance) == [1, 2]
