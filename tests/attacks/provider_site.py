"""A gateway before a worker, which follow the same OpenID provider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guarded_servers import ask, inference
from key_server import KeyServer, key_server

from gateway_process import GatewayProcess, StartGateway
from isochrone.secure.access.tokens import digest_of, new_token
from issued_tokens import AUDIENCE, key, new_token_of
from sample_models import write_models
from server_process import ServerProcess, StartServer
from watching import wait_for

PATH = "/v2/models/identity_fp32/infer"


@dataclass
class Site:
    provider: KeyServer
    worker: ServerProcess
    gateway: GatewayProcess
    access: Path
    #: Signs what ``token`` makes, unless it is given another key.
    signer: Any

    @property
    def servers(self) -> dict[str, ServerProcess]:
        return {"the worker": self.worker, "the gateway": self.gateway}

    def status(self, token: str, server: ServerProcess | None = None) -> int:
        port = (server or self.worker).http_port
        return ask(port, "POST", PATH, {"authorization": f"Bearer {token}"}, inference())[0]

    def token(self, signer: Any = None, **changes: Any) -> str:
        return new_token_of(signer or self.signer, self.provider.issuer, **changes)

    def fault(self) -> None:
        """Until both servers have failed to fetch keys, which a token with an unknown key has caused."""
        for server in self.servers.values():
            assert self.status(self.token(key("unknown", "EC", "P-256")), server) == 401
            wait_for(lambda at=server: "keys of the OpenID provider not fetched" in at.log_text())

    def recovered(self) -> None:
        for server in self.servers.values():
            wait_for(lambda at=server: "keys of the OpenID provider fetched again" in at.log_text())


@contextmanager
def provider_site(
    folder: Path, server_factory: StartServer, gateway_factory: StartGateway, *keys: Any, tokens: str = ""
) -> Iterator[Site]:
    """The first of ``keys`` signs. ``tokens``: further ones of the access file, which may do what a caller may."""
    repository = write_models(folder / "models", "identity_fp32")
    token = new_token()
    (folder / "gateway.token").write_text(token)
    access = folder / "access.yaml"
    with key_server(*keys) as provider:
        access.write_text(
            f"""
tokens: {{gateway: {{sha256: {digest_of(token)}}}{tokens}}}
providers: {{plant: {{issuer: "{provider.issuer}", audience: "{AUDIENCE}"}}}}
assign:
  - {{to: ["oidc:plant/ada", "token:robot*"], roles: [caller]}}
  - {{to: ["token:gateway"], roles: [gateway]}}
"""
        )
        flags = ("--access", str(access))
        own = (*flags, "--upstream-token-file", str(folder / "gateway.token"))
        with (
            server_factory(repository, *flags) as worker,
            gateway_factory([worker], *own, check_exit=False) as gateway,
        ):
            gateway.wait_workers(1)
            yield Site(provider, worker, gateway, access, keys[0])
