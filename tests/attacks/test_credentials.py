"""Every endpoint of worker and gateway with no credential, bad ones, and those of other roles."""

from __future__ import annotations

import http.client
import socket
from collections import Counter
from pathlib import Path

import grpc
import pytest
from guarded_servers import Guarded, ask, inference, write_access
from tritonclient.grpc import service_pb2, service_pb2_grpc

from isochrone.protocol.access.restrictions import grpc_api
from isochrone.protocol.grpc.control import METHODS
from isochrone.secure.access.permissions import BUILT_IN
from sample_models import write_models
from server_process import StartServer
from watching import wait_for

#: Method and path → the permission that it needs, with a body that is valid.
ENDPOINTS: dict[tuple[str, str], tuple[str, object]] = {
    ("GET", "/v2"): ("metadata", None),
    ("GET", "/v2/models/identity_fp32"): ("metadata", None),
    ("GET", "/v2/models/identity_fp32/config"): ("model-config", None),
    ("GET", "/v2/models/identity_fp32/stats"): ("statistics", None),
    ("GET", "/v2/models/stats"): ("statistics", None),
    ("POST", "/v2/models/identity_fp32/infer"): ("inference", inference()),
    ("POST", "/v2/models/identity_fp32/versions/1/infer"): ("inference", inference()),
    ("POST", "/v2/models/identity_fp32/generate"): ("inference", {"IN": [1.0]}),
    ("POST", "/v2/models/identity_fp32/generate_stream"): ("inference", {"IN": [1.0]}),
    ("POST", "/v1/completions"): ("inference", {"model": "identity_fp32", "prompt": "x"}),
    ("POST", "/v1/chat/completions"): ("inference", {"model": "identity_fp32", "messages": []}),
    ("GET", "/v1/models"): ("metadata", None),
    ("POST", "/v2/repository/index"): ("metadata", {}),
    ("POST", "/v2/repository/models/identity_int32/load"): ("model-repository", {}),
    ("POST", "/v2/repository/models/repeat/unload"): ("model-repository", {}),
    ("GET", "/v2/systemsharedmemory/status"): ("shared-memory", None),
    ("POST", "/v2/systemsharedmemory/region/r/register"): ("shared-memory", {"key": "/k", "byte_size": 1}),
    ("POST", "/v2/systemsharedmemory/unregister"): ("shared-memory", {}),
    ("GET", "/v2/cudasharedmemory/status"): ("shared-memory", None),
    ("GET", "/v2/logging"): ("logging", None),
    ("POST", "/v2/logging"): ("logging", {"log_verbose_level": 0}),
    ("GET", "/v2/trace/setting"): ("trace", None),
    ("POST", "/v2/trace/setting"): ("trace", {"trace_level": ["OFF"]}),
}
BAD = {
    "unknown": "Bearer iso_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "empty": "Bearer ",
    "basic": "Basic YWRtaW46YWRtaW4=",
    "no scheme": "admin",
    "unsigned JWT": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.",
    "very long": "Bearer " + "x" * 20_000,
}
REFUSED = (401, 403)


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_rest_endpoints_need_a_credential(guarded: Guarded, tried: Counter[str], method: str, path: str) -> None:
    permission, body = ENDPOINTS[method, path]
    for port in guarded.ports:
        for bad in (None, *BAD):
            headers = {} if bad is None else {"authorization": BAD[bad]}
            status, fields, answer = ask(port, method, path, headers, body)
            assert status == 401, (port, bad, answer)
            assert fields["www-authenticate"] == "Bearer"
            tried[f"REST without a credential, or with a bad one ({len(BAD)} kinds)"] += 1
        for caller in ("expired", "revoked"):
            status, fields, answer = ask(port, method, path, guarded.credential(caller), body)
            assert (status, fields["www-authenticate"]) == (401, "Bearer"), (port, caller, answer)
            tried["REST with an expired or revoked token"] += 1
        assert ask(port, method, path, guarded.credential("nothing"), body)[0] == 403
        for role, permissions in BUILT_IN.items():
            if permission not in permissions:
                status, _, answer = ask(port, method, path, guarded.credential(role), body)
                assert status == 403, (port, role, answer)
                assert b"does not allow" in answer
                tried["REST with the token of another role"] += 1
    # And the right one is let through: what the server then says is its own answer.
    for port in guarded.ports:
        assert ask(port, method, path, guarded.credential("admin"), body)[0] not in REFUSED


def test_metrics_and_recorded_requests_need_their_own_permission(guarded: Guarded, tried: Counter[str]) -> None:
    shared = ("/metrics", "/v1/flights?id=x")
    pages = shared, (*shared, "/samples/identity_fp32", "/agents", "/figures")
    for server, paths in zip(guarded.servers, pages, strict=True):
        for path in paths:
            for caller in ("caller", "nothing", "expired", "revoked"):
                assert ask(server.metrics_port, "GET", path, guarded.credential(caller))[0] in REFUSED, path
                tried["metrics and recorded requests"] += 1
            assert ask(server.metrics_port, "GET", path)[0] == 401, path
            if not path.startswith("/samples"):  # which is for a fleet's controller alone
                assert ask(server.metrics_port, "GET", path, guarded.credential("admin"))[0] not in REFUSED, path
        assert ask(server.metrics_port, "GET", "/metrics", guarded.credential("reader"))[0] == 200
        assert ask(server.metrics_port, "GET", "/metrics", guarded.credential("gateway"))[0] == 200


def test_health_is_open_but_not_to_a_bad_credential(guarded: Guarded, tried: Counter[str]) -> None:
    for port in guarded.ports:
        assert ask(port, "GET", "/v2/health/live")[0] == 200
        assert ask(port, "GET", "/v2/models/identity_fp32/ready")[0] == 200
        assert ask(port, "GET", "/v2/health/ready", guarded.credential("nothing"))[0] == 200
        for value in BAD.values():
            assert ask(port, "GET", "/v2/health/live", {"authorization": value})[0] == 401
            tried["health with a bad credential"] += 1


@pytest.mark.parametrize("server", [0, 1], ids=["worker", "gateway"])
def test_every_grpc_method_needs_a_credential(guarded: Guarded, tried: Counter[str], server: int) -> None:
    target = guarded.servers[server].grpc_url
    methods = {path: kind for path, (kind, _) in METHODS.items()}
    with grpc.insecure_channel(target) as channel:
        for path, kind in methods.items():
            permission = grpc_api(path.decode())
            call = channel.unary_unary(path.decode(), kind.SerializeToString, lambda data: data)
            # Of heads of many kilobytes a connection takes only a few: REST has that case.
            bad = [
                *(value for value in BAD.values() if len(value) < 1000),
                *(guarded.credential(caller)["authorization"] for caller in ("expired", "revoked")),
            ]
            for value in bad:
                assert _code(call, kind(), value) is grpc.StatusCode.UNAUTHENTICATED, (path, value[:20])
                tried["gRPC methods with a bad credential"] += 1
            if permission == "health":
                continue
            assert _code(call, kind(), "") is grpc.StatusCode.UNAUTHENTICATED, path
            wrong = guarded.credential("nothing")["authorization"]
            assert _code(call, kind(), wrong) is grpc.StatusCode.PERMISSION_DENIED, path
            tried["gRPC methods without a credential, or with another role's"] += 2


def _code(call: grpc.UnaryUnaryMultiCallable, message: object, value: str) -> grpc.StatusCode:
    try:
        call(message, metadata=(("authorization", value),) if value else (), timeout=60)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_roles_end_at_their_models_and_their_priority(guarded: Guarded, tried: Counter[str]) -> None:
    mine = guarded.credential("limited")
    for port in guarded.ports:
        assert ask(port, "POST", "/v2/models/identity_fp32/infer", mine, inference())[0] == 200
        assert ask(port, "POST", "/v2/models/identity_fp32/infer", mine, inference(priority=2))[0] == 200
        for path, body in (
            ("/v2/models/identity_int32/infer", inference("INT32")),
            ("/v2/models/identity_fp32/infer", inference(priority=1)),
            # The name in the path counts, and only that.
            ("/v2/models/identity_int32/infer", {**inference("INT32"), "model_name": "identity_fp32"}),
            ("/v2/models/identity%5Fint32/infer", inference("INT32")),
            ("/v2/models/identity_fp32%2F..%2Fidentity_int32/infer", inference("INT32")),
            ("/v1/completions", {"model": "identity_int32", "prompt": "x"}),
            ("/v1/completions", {"model": "identity_fp32", "prompt": "x", "model ": 1, "priority": 1}),
        ):
            status, _, answer = ask(port, "POST", path, mine, body)
            if path == "/v1/completions" and body["model"] == "identity_fp32":
                continue
            assert status in (403, 404), (port, path, answer)
            tried["another model, or a higher priority, than the role covers"] += 1
        for path in ("/v2/models/identity_int32", "/v2/models/identity_int32/versions/1", "/v1/models/identity_int32"):
            assert ask(port, "GET", path, mine)[0] == 403, path
            tried["another model, or a higher priority, than the role covers"] += 1


def test_two_credentials_in_one_request_are_no_way_around(guarded: Guarded, tried: Counter[str]) -> None:
    """Servers and proxies differ in which of two fields counts: the first does here, in every process."""
    bad, good = BAD["unknown"], guarded.credential("admin")["authorization"]
    for port in guarded.ports:
        for first, second in ((bad, good), ("", good)):
            lines = f"GET /v2 HTTP/1.1\r\nhost: x\r\nauthorization: {first}\r\nauthorization: {second}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", port), 60) as connection:
                connection.sendall(lines.encode())
                assert b" 40" in connection.recv(100)[:14]
            tried["two Authorization fields"] += 1


def test_a_token_that_is_revoked_is_refused_on_open_connections(
    tmp_path: Path, server_factory: StartServer, tried: Counter[str]
) -> None:
    access = tmp_path / "access.yaml"
    tokens = write_access(access)
    repository = write_models(tmp_path / "models", "identity_fp32")
    with server_factory(repository, "--access", str(access)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        headers = {"authorization": f"Bearer {tokens['caller']}"}

        def status() -> int:
            connection.request("GET", "/v2", headers=headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status

        # Often enough that the head is memoised.
        assert [status() for _ in range(5)] == [200] * 5
        text = access.read_text()
        access.write_text("tokens: [")
        wait_for(lambda: "cannot be read" in server.log_text())
        assert status() == 200, "a wrong file changes nothing"
        lines = text.replace("sha256", "revoked: true, sha256").splitlines(keepends=True)
        access.write_text("".join(line.replace(", revoked: true}", "}") for line in lines))
        wait_for(lambda: status() == 401)
        tried["a token revoked while its connection is open"] += 1
        access.write_text(text)
        wait_for(lambda: status() == 200)
        connection.close()


def test_tokens_are_in_no_log_and_no_command_line(guarded: Guarded, tried: Counter[str]) -> None:
    secrets = [*guarded.tokens.values(), "AAAAAAAAAAAAAAAAAAAA"]
    for server in guarded.servers:
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes().decode()
        metrics = ask(server.metrics_port, "GET", "/metrics", guarded.credential("admin"))[2].decode()
        for text in (server.log_text(), command, metrics):
            assert not any(secret in text for secret in secrets)
            tried["tokens searched for in logs, metrics and command lines → not found"] += len(secrets)


@pytest.mark.parametrize("server", [0, 1], ids=["worker", "gateway"])
def test_a_stream_cannot_change_to_another_model(guarded: Guarded, tried: Counter[str], server: int) -> None:
    def message(model: str, datatype: str, priority: int = 0) -> service_pb2.ModelInferRequest:
        made = service_pb2.ModelInferRequest(model_name=model)
        made.inputs.add(name="IN", datatype=datatype, shape=[2])
        made.raw_input_contents.append(bytes(8))
        if priority:
            made.parameters["priority"].uint64_param = priority
        return made

    def answers(*messages: service_pb2.ModelInferRequest) -> tuple[int, grpc.StatusCode | None]:
        """Answers without an error, and how the stream ended."""
        good = 0
        with grpc.insecure_channel(guarded.servers[server].grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            credential = (("authorization", guarded.credential("limited")["authorization"]),)
            try:
                for answer in stub.ModelStreamInfer(iter(messages), metadata=credential, timeout=60):
                    good += not answer.error_message
            except grpc.RpcError as error:
                return good, error.code()
        return good, None

    mine = message("identity_fp32", "FP32")
    assert answers(mine, mine) == (2, None)
    for other in (message("identity_int32", "INT32"), message("identity_fp32", "FP32", 1)):
        good, _ = answers(mine, other, other)
        assert good <= 1
        assert answers(other)[0] == 0
        tried["another model, or a higher priority, in a stream"] += 3
