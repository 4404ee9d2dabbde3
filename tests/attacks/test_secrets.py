"""Secrets of a worker, a gateway and their callers, searched for in everything that these processes put out."""

from __future__ import annotations

import signal
import urllib.parse
from base64 import b64encode
from collections import Counter
from pathlib import Path

import psutil
from guarded_servers import ask, inference, write_access

from gateway_process import StartGateway
from sample_models import write_models, write_python
from server_process import StartServer

_FAILING = """
    class Model:
        def infer(self, inputs):
            if inputs["IN"].any():  # a warm-up has zeros
                raise ValueError("failed on purpose")
            return {"OUT": inputs["IN"]}
"""


def test_no_output_contains_a_secret(
    tmp_path: Path, server_factory: StartServer, gateway_factory: StartGateway, tried: Counter[str]
) -> None:
    tokens = write_access(tmp_path / "access.yaml")
    sent = {name: tokens[name] for name in ("admin", "caller", "expired", "revoked", "nothing")}
    audit_key = "audit-key-0123456789abcdef0123456789abcdef"
    (tmp_path / "audit.key").write_text(audit_key)
    (tmp_path / "gateway.token").write_text(tokens["gateway"])
    models = write_models(tmp_path / "models", "identity_fp32", "identity_int32")
    write_python(models / "identity_int32", _FAILING)
    for name in ("worker", "gateway"):
        (tmp_path / name / "flights").mkdir(parents=True)

    def flags(name: str) -> tuple[str, ...]:
        own = tmp_path / name
        return (
            *("--access", str(tmp_path / "access.yaml"), "--access-log", "1"),
            *("--access-log-file", str(own / "access.log"), "--dump-flights", str(own / "flights")),
            *("--audit", str(own / "audit"), "--audit-requests", "--audit-key", str(tmp_path / "audit.key")),
        )

    said: dict[str, bytes] = {}
    secrets = [*tokens.values(), audit_key, "basic-password-1234", "query-secret-5678", "cookie-secret-9012"]
    explicit = ("--model-control-mode", "explicit", "--load-model", "*", "--log-verbose", "2")
    with (
        server_factory(models, *flags("worker"), *explicit, check_exit=False) as worker,
        gateway_factory(
            [worker], *flags("gateway"), "--upstream-token-file", str(tmp_path / "gateway.token"), check_exit=False
        ) as gateway,
    ):
        basic = b64encode(b"ada:basic-password-1234").decode()
        for port in (worker.http_port, gateway.http_port):
            credentials = [f"Bearer {token}" for token in sent.values()]
            credentials += [f"Basic {basic}", "Bearer query-secret-5678", f"bearer  {tokens['admin']}"]
            for number, credential in enumerate(credentials):
                headers = {
                    "authorization": credential,
                    "cookie": "session=cookie-secret-9012",
                    "x-isochrone-control": tokens["gateway"],
                    "x-request-timeout-ms": "0.001" if number % 2 else "60000",
                }
                for path, body in (
                    ("/v2/models/identity_fp32/infer", inference()),
                    ("/v2/models/identity_int32/infer", inference("INT32")),
                    ("/v2/models/identity_fp32/infer", b"{"),
                    ("/v2/models/unknown/infer", inference()),
                    ("/v2/models/identity_fp32/infer?token=query-secret-5678", inference()),
                    ("/v2/repository/models/identity_fp32/load", {}),
                    ("/v2/logging", {"log_verbose_level": 2}),
                    ("/v2/trace/setting", {"trace_rate": "query-secret"}),
                ):
                    status, fields, answer = ask(port, "POST", path, headers, body)
                    said[f"answer {port} {number} {path}"] = repr((status, fields)).encode() + answer
        administrator = {"authorization": f"Bearer {tokens['admin']}"}
        for server, pages in ((worker, ("/metrics",)), (gateway, ("/metrics", "/agents", "/figures"))):
            for page in (*pages, "/v1/flights?id=x", "/v1/flights", "/v1/flights?model=identity_fp32"):
                said[f"page {page} of {server.metrics_port}"] = ask(server.metrics_port, "GET", page, administrator)[2]
            for process in (psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)):
                for file in ("cmdline", "environ", "comm"):
                    said[f"{file} of {process.pid}"] = Path(f"/proc/{process.pid}/{file}").read_bytes()
        # The traceback of an end by a fault names lines, and no values.
        for server in (gateway, worker):
            server.process.send_signal(signal.SIGABRT)
            server.process.wait(60)
        for server in (worker, gateway):
            said[f"log of {server.log_path.name}"] = server.log_path.read_bytes()
    for name in ("worker", "gateway"):
        files = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        assert any(path.name == "access.log" for path in files)
        assert any("audit" in path.parts[-2:][0] or "audit" in str(path) for path in files)
        said.update({str(path): path.read_bytes() for path in files})
    spelled = {form for secret in secrets for form in (secret, urllib.parse.quote(secret), secret[:20])}
    spelled.add(basic)
    for place, text in said.items():
        for secret in spelled:
            found = text.find(secret.encode())
            assert found < 0, (place, text[max(0, found - 200) : found + 100])
            tried["secrets searched for in outputs → not found"] += 1
