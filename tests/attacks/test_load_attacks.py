"""Code and files by way of load requests: names, versions, parameters and links, directly and through a gateway."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from guarded_servers import ask, inference
from tritonclient.grpc import service_pb2

from gateway_process import GatewayProcess, StartGateway
from sample_models import write_config, write_models, write_python
from server_process import ServerProcess, StartServer

INFER = "/v2/models/identity_fp32/infer"
#: What a page of another site can make a browser send without asking first.
FOREIGN = {"Host": "10.9.8.7:8000", "Origin": "http://evil.example", "Content-Type": "text/plain"}


class Target:
    """A worker that loads on request, with or without files of callers, and gateways before it."""

    def __init__(self, folder: Path, worker: ServerProcess, gateway: GatewayProcess) -> None:
        self.folder = folder
        self.worker = worker
        self.gateway = gateway
        #: Code of the attacker leaves this file.
        self.trace = folder / "it_ran"

    @property
    def code(self) -> str:
        return base64.b64encode(f"import pathlib\npathlib.Path({str(self.trace)!r}).touch()\n".encode()).decode()

    @property
    def ports(self) -> tuple[int, int]:
        return self.worker.http_port, self.gateway.http_port

    def load(self, port: int, name: str, parameters: Any = None, headers: dict[str, str] | None = None) -> int:
        path = f"/v2/repository/models/{quote(name, safe='')}/load"
        status, _, _ = ask(port, "POST", path, headers, {"parameters": parameters or {}})
        return status

    def check(self) -> None:
        """Nothing ran, nothing lies where it should not, and models are served."""
        assert not self.trace.exists()
        assert not list(self.folder.rglob("escape*"))
        for port in self.ports:
            assert ask(port, "POST", INFER, None, inference())[0] == 200
        assert "loaded from outside" not in self.worker.log_text()


@pytest.fixture(scope="module", params=["files refused", "files allowed"])
def target(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    server_factory: StartServer,
    gateway_factory: StartGateway,
) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("loads")
    repository = write_models(folder / "models", "identity_fp32")
    (folder / "outside" / "1").mkdir(parents=True)
    write_config(folder / "outside", 'backend: "python"')
    write_python(folder / "outside", "raise SystemExit('loaded from outside')")
    files = ("--allow-file-overrides",) if request.param == "files allowed" else ()
    explicit = ("--model-control-mode", "explicit", "--load-model", "identity_fp32")
    with (
        server_factory(repository, *explicit, *files) as worker,
        gateway_factory([worker], *files) as gateway,
    ):
        yield Target(folder, worker, gateway)


@pytest.fixture(autouse=True)
def _unharmed(target: Target) -> Iterator[None]:
    yield
    target.check()


CONFIG = json.dumps({"backend": "python", "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]})
NAMES = (
    *(
        "../outside",
        "..",
        ".",
        "",
        "/",
        "//outside",
        "a/../../outside",
        "..%2foutside",
        "%2e%2e/outside",
        "..\\outside",
    ),
    *("outside\0", "\0", "../outside\0.onnx", "\u2025/outside", "\uff0e\uff0e/outside", "x" * 300, "identity_fp32/1"),
)


def test_names_that_lead_out_of_the_repository(target: Target, tried: Counter[str]) -> None:
    for port in target.ports:
        for name in NAMES:
            assert target.load(port, name) in (400, 404, 405), name
            tried["model names that lead out of the repository"] += 1
        for raw in (
            "/v2/repository/models/../../outside/load",
            "/v2/repository/models/..%2Foutside/load",
            "/v2/repository/models/%2e%2e%2foutside/load",
            "/v2/repository/models/%252e%252e%252foutside/load",
            "/v2/repository/models/..%c0%afoutside/load",
            "/v2/repository/models/%c0%ae%c0%ae%c0%afoutside/load",
            "/v2/repository/models/..%e0%80%afoutside/load",
            "/v2/repository/models/%00/load",
            "/v2/repository/models/..;/outside/load",
            "/v2/repository/..%2f../models/outside/load",
            "/v2/models/identity_fp32/versions/..%2f..%2f..%2foutside%2f1/infer",
            "/v2/models/identity_fp32/versions/%00/infer",
            "/v2/models/identity_fp32/versions/1%2f..%2f1/infer",
            "/v2/models/identity_fp32/versions/+1/infer",
            "/v2/models/identity_fp32/versions/%ef%bc%91/infer",
        ):
            status, _, answer = ask(port, "POST", raw, None, b"{}")
            assert status in (400, 404, 405), (raw, answer)
            tried["paths that lead out of the repository"] += 1
    with grpc.insecure_channel(target.worker.grpc_url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")
        for name in NAMES:
            request = service_pb2.RepositoryModelLoadRequest(model_name=name)
            with pytest.raises(grpc.RpcError):
                call(request.SerializeToString(), timeout=60)
            tried["model names that lead out of the repository"] += 1


def test_files_that_lead_out_of_their_model(target: Target, tried: Counter[str]) -> None:
    for port in target.ports:
        for path in (
            *("../../escape.py", "1/../../../escape.py", "/tmp/escape.py", "", ".", "..", "1/..", "1//model.py", "1/"),
            *("./1/model.py", "1/a\0b", "1\\..\\..\\escape.py", "1/" + "n" * 5000, "%2e%2e/escape.py/..", "~/escape"),
            *("1/../../identity_fp32/1/model.py", "../identity_fp32/1/model.py", "1/./../../escape.py"),
        ):
            status = target.load(port, "fresh", {"config": CONFIG, f"file:{path}": target.code})
            assert status in (400, 403), path
            tried["files of load requests that lead out of their model"] += 1


def test_code_needs_more_than_a_configuration(target: Target, tried: Counter[str]) -> None:
    """What a configuration could name: backends, scripts, environments and libraries of the machine."""
    outside = str(target.folder / "outside")
    (target.folder / "evil.py").write_text(f"import pathlib\npathlib.Path({str(target.trace)!r}).touch()\n")
    for port in target.ports:
        for change in (
            {"backend": "../../outside"},
            {"backend": outside},
            {"backend": "evil\0"},
            {"default_model_filename": "../../outside/1/model.py"},
            {"default_model_filename": outside + "/1/model.py"},
            {"default_model_filename": str(target.folder / "evil.py")},
            {"cc_model_filenames": {"7.5": "../../outside/1/model.py"}},
            {"parameters": {"EXECUTION_ENV_PATH": {"string_value": outside + "/env.tar.gz"}}},
            {
                "parameters": {
                    "FORCE_CPU_ONLY_INPUT_TENSORS": {"string_value": "no"},
                    "sys_path": {"string_value": outside},
                }
            },
            {"model_operations": {"op_library_filename": [outside + "/evil.so"]}},
            {"model_repository_agents": {"agents": [{"name": "../../evil"}]}},
            {"backend": "onnxruntime", "parameters": {"custom_op_library": {"string_value": outside + "/evil.so"}}},
        ):
            config = json.dumps({**json.loads(CONFIG), **change})
            for model in ("fresh", "identity_fp32"):
                # Refused, or loaded from the model's own files: in neither case the attacker's code runs.
                target.load(port, model, {"config": config})
                assert not target.trace.exists(), change
                tried["configurations that name files of the machine"] += 1
        assert target.load(port, "identity_fp32") == 200


def test_pages_of_other_sites_load_nothing(target: Target, tried: Counter[str]) -> None:
    for port in (*target.ports, target.worker.grpc_port):
        for origin in (
            "http://evil.example",
            "null",
            "http://127.0.0.1.evil.example",
            "https://127.0.0.1:1",
            "file://",
        ):
            for host in (f"127.0.0.1:{port}", "10.9.8.7:8000", "evil.example"):
                headers = {**FOREIGN, "Host": host, "Origin": origin}
                parameters = {"config": CONFIG, "file:1/model.py": target.code}
                assert target.load(port, "fresh", parameters, headers) == 403, headers
                tried["load requests of other sites' pages"] += 1


def test_code_is_refused_where_files_are(target: Target, tried: Counter[str], request: pytest.FixtureRequest) -> None:
    if "files allowed" in request.node.name:
        return
    for port in target.ports:
        for name in ("fresh", "identity_fp32"):
            for key in ("file:1/model.py", "file:model.py", "file:1/model.onnx", "FILE:1/model.py", "file :1/model.py"):
                assert target.load(port, name, {"config": CONFIG, key: target.code}) in (400, 403)
                tried["code in load requests"] += 1
    for server in (target.worker, target.gateway):
        with grpc.insecure_channel(server.grpc_url) as channel:
            message = service_pb2.RepositoryModelLoadRequest(model_name="fresh")
            message.parameters["config"].string_param = CONFIG
            message.parameters["file:1/model.py"].bytes_param = base64.b64decode(target.code)
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")(
                    message.SerializeToString(), timeout=60
                )
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            tried["code in load requests"] += 1
