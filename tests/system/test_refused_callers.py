"""Real workers and gateways with access rules and an audit log: refused callers are on record, floods take no room."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway_process import StartGateway
from isochrone.secure.access.tokens import digest_of, new_token
from isochrone.secure.audit.reading import merged
from isochrone.secure.audit.records import Record
from isochrone.secure.audit.verification import verify
from sample_models import write_models
from server_process import ServerProcess, StartServer
from watching import wait_for

CALLERS = ("robot", "reader", "revoked", "gateway")
LOAD = "/v2/repository/models/identity_fp32/load"
INFER = "/v2/models/identity_fp32/infer"
BODY = {"inputs": [{"name": "IN", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}
FLOOD = 2000


class Access(NamedTuple):
    file: Path
    tokens: Mapping[str, str]
    fields: Mapping[str, dict[str, str]]


@pytest.fixture
def access(tmp_path: Path) -> Access:
    tokens = {name: new_token() for name in CALLERS}
    revoked = {"revoked": ", revoked: true"}
    file = tmp_path / "access.yaml"
    lines = [
        "tokens:",
        *(f"  {name}: {{sha256: {digest_of(token)}{revoked.get(name, '')}}}" for name, token in tokens.items()),
        "roles:",
        "  robot: [{may: [inference, metadata], models: [identity_fp32]}]",
        "assign:",
        "  - {to: ['token:robot'], roles: [robot]}",
        "  - {to: ['token:reader', 'token:revoked'], roles: [reader]}",
        "  - {to: ['token:gateway'], roles: [gateway, caller]}",
    ]
    file.write_text("\n".join(lines) + "\n")
    (tmp_path / "gateway.token").write_text(tokens["gateway"])
    fields = {name: {"authorization": f"Bearer {token}"} for name, token in tokens.items()}
    wrong = {"authorization": f"Bearer {new_token()}"}
    return Access(file, tokens, {**fields, "wrong": wrong, "none": {}})


def ask(port: int, method: str, path: str, fields: Mapping[str, str], body: Any = None) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, None if body is None else json.dumps(body), dict(fields))
        return connection.getresponse().status


def refused(log: Path) -> list[Record]:
    return [record for _, record in merged([log]) if record.action == "access.refuse"]


def counts(log: Path) -> Counter[tuple[str, str, str, str]]:
    """By actor, permission, error and change."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    for record in refused(log):
        details = record.details
        assert record.outcome == "refused"
        assert record.actor["address"] == "127.0.0.1"
        found[record.actor["name"], record.object, details["error"], details.get("change", "")] += details["times"]
    return found


def call_grpc(server: ServerProcess, fields: Mapping[str, str]) -> None:
    """A refused call, stream and change."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = [*fields.items()]
        request = service_pb2.ModelInferRequest(model_name="identity_fp32")
        for call in (
            lambda: stub.ModelInfer(request, metadata=metadata, timeout=60),
            lambda: [*stub.ModelStreamInfer(iter([request]), metadata=metadata, timeout=60)],
            lambda: stub.RepositoryModelLoad(
                service_pb2.RepositoryModelLoadRequest(model_name="identity_fp32"), metadata=metadata, timeout=60
            ),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                call()
            assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


def try_everything(server: ServerProcess, access: Access, log: Path) -> None:
    fields = access.fields
    for caller in ("none", "wrong", "revoked"):
        assert ask(server.http_port, "POST", INFER, fields[caller], BODY) == 401
    assert ask(server.http_port, "POST", INFER, fields["reader"], BODY) == 403
    for caller, status in (("wrong", 401), ("reader", 403)):
        assert ask(server.http_port, "POST", LOAD, fields[caller], {}) == status
    assert ask(server.metrics_port, "GET", "/metrics", fields["robot"]) == 403
    call_grpc(server, fields["wrong"])
    # The right one is served, and the model that it may not use is not.
    assert ask(server.http_port, "POST", INFER, fields["robot"], BODY) == 200
    assert ask(server.http_port, "POST", "/v2/models/identity_int32/infer", fields["robot"], BODY) == 403
    expected = {
        ("anonymous", "inference", "unauthenticated", ""): 5,
        ("anonymous", "model-repository", "unauthenticated", "model.load"): 2,
        ("token:reader", "inference", "permission_denied", ""): 1,
        ("token:reader", "model-repository", "permission_denied", "model.load"): 1,
        ("token:robot", "metrics", "permission_denied", ""): 1,
        ("token:robot", "inference", "permission_denied", ""): 1,
    }
    # The first of each kind at once, while the process runs.
    wait_for(lambda: {*counts(log)} == {*expected})
    flood(server, fields["wrong"])
    expected["anonymous", "inference", "unauthenticated", ""] += FLOOD
    assert ask(server.http_port, "POST", INFER, fields["robot"], BODY) == 200
    server.terminate()
    assert counts(log) == expected
    # Some dozens where a minute ends in between, and not thousands.
    assert len(refused(log)) <= 4 * len(expected)


def flood(server: ServerProcess, fields: Mapping[str, str]) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)) as connection:
        for _ in range(FLOOD):
            connection.request("POST", INFER, json.dumps(BODY), dict(fields))
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 401


def check_log(log: Path, access: Access) -> None:
    verdict = verify(log)
    assert verdict.is_intact, verdict.findings
    text = "".join(path.read_text() for path in log.glob("*.jsonl"))
    secrets = [fields["authorization"].split()[1] for fields in access.fields.values() if fields]
    assert not any(secret in text for secret in secrets)


@pytest.mark.parametrize("requests", [(), ("--audit-requests",)], ids=["changes alone", "requests too"])
def test_a_worker_records_whom_it_refuses(
    server_factory: StartServer, tmp_path: Path, access: Access, requests: tuple[str, ...]
) -> None:
    repository = write_models(tmp_path / "models", "identity_fp32", "identity_int32")
    log = tmp_path / "audit" / "w-1"
    flags = ("--access", str(access.file), "--audit", str(tmp_path / "audit"), "--name", "w-1", *requests)
    explicit = ("--model-control-mode", "explicit", "--load-model", "*")
    with server_factory(repository, *flags, *explicit) as server:
        try_everything(server, access, log)
    check_log(log, access)
    assert sum(record.action == "infer" for _, record in merged([log])) == (2 if requests else 0)


def test_a_gateway_records_whom_it_refuses(
    server_factory: StartServer, gateway_factory: StartGateway, tmp_path: Path, access: Access
) -> None:
    repository = write_models(tmp_path / "models", "identity_fp32", "identity_int32")
    log = tmp_path / "audit" / "gw-1"
    token = ("--upstream-token-file", str(tmp_path / "gateway.token"))
    flags = ("--access", str(access.file), "--audit", str(tmp_path / "audit"), "--name", "gw-1")
    with server_factory(repository) as worker, gateway_factory([worker], *flags, *token) as gateway:
        gateway.wait_workers(1)
        try_everything(gateway, access, log)
    check_log(log, access)
