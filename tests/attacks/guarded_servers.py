"""A worker and a gateway with an access file, and requests with and without credentials."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway_process import GatewayProcess
from isochrone.secure.access.tokens import digest_of, new_token
from server_process import ServerProcess

#: Callers with a token each: the name is the role's, and the last two may do nothing any more.
CALLERS = ("admin", "caller", "reader", "operator", "gateway", "limited", "nothing", "expired", "revoked")


@dataclass(frozen=True)
class Guarded:
    worker: ServerProcess
    gateway: GatewayProcess
    tokens: Mapping[str, str]
    access: Path

    @property
    def ports(self) -> tuple[int, int, int]:
        """Where requests are served: both of the worker's and the gateway's."""
        return self.worker.http_port, self.worker.grpc_port, self.gateway.http_port

    @property
    def servers(self) -> tuple[ServerProcess, ServerProcess]:
        return self.worker, self.gateway

    def credential(self, caller: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens[caller]}"}


def write_access(path: Path, **more: str) -> dict[str, str]:
    """An access file with a token of each caller; ``more``: further settings of a token."""
    tokens = {name: new_token() for name in CALLERS}
    lines = ["tokens:"]
    for name, token in tokens.items():
        extra = {"expired": ", expires: 2020-01-01", "revoked": ", revoked: true"}.get(name, "") + more.get(name, "")
        lines.append(f"  {name}: {{sha256: {digest_of(token)}{extra}}}")
    lines += [
        "roles:",
        "  limited: [{may: [inference, metadata], models: [identity_fp32], priority: 2}]",
        "assign:",
        *(f"  - {{to: ['token:{name}'], roles: [{name}]}}" for name in CALLERS[:6]),
        "  - {to: ['token:expired', 'token:revoked'], roles: [admin]}",
    ]
    path.write_text("\n".join(lines) + "\n")
    return tokens


def ask(
    port: int, method: str, path: str, headers: Mapping[str, str] | None = None, body: Any = None
) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own: status, headers with lower-case names, body."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        payload = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, payload, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def inference(datatype: str = "FP32", **parameters: Any) -> dict[str, Any]:
    """The body of a request to an identity model."""
    tensor = {"name": "IN", "shape": [2], "datatype": datatype, "data": [1, 2]}
    return {"inputs": [tensor], "parameters": parameters} if parameters else {"inputs": [tensor]}
