"""Model names and versions by gRPC that look like paths: gateway and worker refuse them, and no file is touched."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import grpc
import pytest
from guarded_servers import Guarded
from tritonclient.grpc import service_pb2, service_pb2_grpc

#: Protobuf's strings are UTF-8: half a character cannot be sent by this client.
NAMES = [
    *("../identity_fp32", "identity_fp32/../identity_int32", "/etc/passwd", "..", ".", "./identity_fp32", "a/b"),
    *("identity_fp32%2f..%2fidentity_int32", "%2e%2e%2fmodels", "identity%5ffp32", "identity_fp32%00", "%", "%zz"),
    *(
        "identity_fp32\0",
        "\0",
        "identity_fp32\0/../../x",
        "identity_fp32\n",
        " identity_fp32",
        "identity_fp32 ",
        "\\..\\x",
    ),
    *("identity_fp32;id", "$(id)", "`id`", "~root", "\u202eidentity_fp32", "IDENTITY_FP32", "identity_fp32\u0301", "*"),
    *("x" * 300, "x" * 100_000, "../" * 30_000, "é" * 50_000, "__proto__", "None", ""),
]
VERSIONS = ["../1", "1/../1", "-1", "0x1", "1\0", " 1", "9" * 100_000, "1" * 30, "x", "１", "%31", "1.0", "latest"]
REFUSED = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE)


def infer(name: str, version: str = "") -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name=name, model_version=version)
    made.inputs.add(name="IN", datatype="FP32", shape=[2])
    made.raw_input_contents.append(bytes(8))
    return made


@pytest.mark.parametrize("server", [0, 1], ids=["worker", "gateway"])
def test_names_that_are_paths(guarded: Guarded, tried: Counter[str], server: int) -> None:
    folder = guarded.access.parent
    before = {path: path.stat().st_mtime_ns for path in (folder / "models").rglob("*")}
    credential = (("authorization", guarded.credential("admin")["authorization"]),)
    with grpc.insecure_channel(guarded.servers[server].grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        def refused(what: str, call: grpc.UnaryUnaryMultiCallable, message: object) -> None:
            with pytest.raises(grpc.RpcError) as caught:
                call(message, timeout=60, metadata=credential)
            assert caught.value.code() in REFUSED, (what, caught.value.code(), caught.value.details()[:500])
            assert len(caught.value.details()) < 8000, "an error does not repeat what it refuses"
            tried["model names and versions by gRPC that look like paths"] += 1

        for name in NAMES:
            refused(f"infer {name[:50]!r}", stub.ModelInfer, infer(name))
            if name:  # of all models, for these
                refused(f"config {name[:50]!r}", stub.ModelConfig, service_pb2.ModelConfigRequest(name=name))
                refused(f"metadata {name[:50]!r}", stub.ModelMetadata, service_pb2.ModelMetadataRequest(name=name))
                refused(
                    f"statistics {name[:50]!r}", stub.ModelStatistics, service_pb2.ModelStatisticsRequest(name=name)
                )
            if server == 0:
                load = service_pb2.RepositoryModelLoadRequest(model_name=name)
                refused(f"load {name[:50]!r}", stub.RepositoryModelLoad, load)
            # A stream of one message: the error is its answer, or its end.
            errors = []
            try:
                answers = stub.ModelStreamInfer(iter([infer(name)]), timeout=60, metadata=credential)
                errors.extend(bool(answer.error_message) for answer in answers)
            except grpc.RpcError as error:
                errors.append(error.code() in REFUSED)
            assert errors, name[:50]
            assert all(errors), name[:50]
            tried["model names by gRPC streams that look like paths"] += 1
        for version in VERSIONS:
            refused(f"version {version[:50]!r}", stub.ModelInfer, infer("identity_fp32", version))
        good = stub.ModelInfer(infer("identity_fp32"), timeout=60, metadata=credential)
        assert good.raw_output_contents[0] == bytes(8)
    assert {path: path.stat().st_mtime_ns for path in (folder / "models").rglob("*")} == before
    log = guarded.servers[server].log_text()
    assert "Traceback" not in log
    assert not any(len(line) > 20_000 for line in log.splitlines()), "a name of 100 KB is not logged as it is"
    assert not list(Path(folder).glob("x*"))
