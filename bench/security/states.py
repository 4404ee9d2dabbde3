"""The settings of security that are compared: which files a server gets, and what its callers present."""

from __future__ import annotations

import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from joserfc import jwk, jws

from bench.observe_cost import HOST
from isochrone.secure.access.tokens import digest_of, new_token
from isochrone.secure.certificates.authority import Authority
from isochrone.secure.certificates.minting import Leaf
from isochrone.secure.certificates.subject_names import read_names

PLAIN = "plain"
_AUDIENCE = "https://fleet.example"
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class State:
    """One setting. ``inner``: also TLS, with certificates of both sides, from the gateway to its workers."""

    name: str
    tls: bool = False
    mutual: bool = False
    credential: str = ""
    audit: bool = False
    inner: bool = False


STATES = (
    State(PLAIN),
    State("TLS", tls=True),
    State("mTLS", tls=True, mutual=True),
    State("TLS, token", tls=True, credential="static"),
    State("TLS, OIDC token", tls=True, credential="oidc"),
    State("token", credential="static"),
    State("token, audit", credential="static", audit=True),
    State("mTLS on both hops", tls=True, mutual=True, inner=True),
)
GATEWAY_ONLY = "mTLS on both hops"


class Material:
    """Certificates, tokens and an access file in one directory; the keys of a provider come from this process."""

    def __init__(self, place: Path, issuer: str, key: Any) -> None:
        self._files = place / "ca"
        authority = Authority.create(self._files, _DAY, datetime.now(UTC))
        for name, hosts in (("server", ["localhost", HOST]), ("client", [])):
            leaf = Leaf(name, read_names(hosts, [f"spiffe://bench.example/{name}"]), bool(hosts), True, _DAY)
            authority.issue(leaf, datetime.now(UTC))
        self.ca = self._files / "ca.crt"
        token = new_token()
        self._tokens = {"static": token, "oidc": _signed(key, issuer)}
        self._access = place / "access.yaml"
        self._access.write_text(
            f"""
tokens: {{bench: {{sha256: {digest_of(token)}}}}}
providers: {{plant: {{issuer: "{issuer}", audience: "{_AUDIENCE}"}}}}
assign: [{{to: ["token:bench", "oidc:plant/bench"], roles: [caller, reader]}}]
"""
        )
        self._key = place / "audit.key"
        self._key.write_text("0123456789abcdef0123456789abcdef")

    def pair(self, name: str) -> tuple[str, str]:
        return str(self._files / name / "tls.crt"), str(self._files / name / "tls.key")

    def server_flags(self, state: State, folder: Path) -> list[str]:
        """Of the process that callers reach."""
        certificate, key = self.pair("server")
        flags = ["--tls-cert", certificate, "--tls-key", key] if state.tls else []
        flags += ["--tls-client-ca", str(self.ca)] if state.mutual else []
        flags += ["--access", str(self._access)] if state.credential else []
        if state.audit:
            flags += ["--audit", str(folder / "audit"), "--audit-requests", "--audit-key", str(self._key)]
        return flags

    def upstream_flags(self, state: State) -> tuple[list[str], list[str]]:
        """Of the workers, and of the gateway before them."""
        if not state.inner:
            return [], []
        certificate, key = self.pair("server")
        worker = ["--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", str(self.ca)]
        return worker, ["--upstream-ca", str(self.ca), "--upstream-cert", certificate, "--upstream-key", key]

    def authorization(self, state: State) -> str:
        return f"Bearer {self._tokens[state.credential]}" if state.credential else ""


@contextmanager
def provider() -> Iterator[tuple[str, Any]]:
    """The URL of an OpenID provider in a thread of this process, and its key. Servers fetch it once in the run."""
    key = jwk.generate_key("RSA", 2048, {"kid": "bench"}, private=True)
    documents: dict[str, Any] = {"/keys": {"keys": [key.as_dict(private=False)]}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(documents.get(self.path)).encode()
            self.send_response(200 if self.path in documents else 404)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer((HOST, 0), Handler)
    issuer = f"http://{HOST}:{server.server_port}"
    documents["/.well-known/openid-configuration"] = {"issuer": issuer, "jwks_uri": f"{issuer}/keys"}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield issuer, key
    finally:
        server.shutdown()
        server.server_close()


def _signed(key: Any, issuer: str) -> str:
    now = time.time()
    claims = {"iss": issuer, "aud": _AUDIENCE, "sub": "bench", "iat": now, "exp": now + 86_400}
    text = ".".join(_segment(each) for each in ({"alg": "RS256", "kid": "bench", "typ": "at+jwt"}, claims))
    signature = jws.JWSRegistry.algorithms["RS256"].sign(text.encode(), key)
    return f"{text}.{urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def _segment(content: object) -> str:
    return urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()
