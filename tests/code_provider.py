"""An OpenID provider over loopback HTTP with authorization codes and refresh tokens; its users agree to everything."""

from __future__ import annotations

import http.server
import json
import secrets
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from issued_tokens import key, public, signed

CLIENT = "console"
AUDIENCE = "https://fleet.example"


class CodeProvider:
    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.key = key("provider", "EC", "P-256")
        #: Seconds for which its tokens are valid: those of a login, and renewed ones.
        self.lifetime = 600.0
        self.renewed_lifetime = 600.0
        #: Claims that replace those of its next ID token.
        self.id_claims: dict[str, Any] = {}
        self._codes: dict[str, dict[str, str]] = {}
        self._refresh: dict[str, str] = {}
        #: Every token that it issued or took back.
        self.issued: list[str] = []
        self.revoked: list[str] = []
        self.renewals = 0
        self.renews = True

    def log_in(self, url: str, user: str) -> str:
        """What its pages do: the address to which the user's browser is sent back."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert url.startswith(f"{self.issuer}/authorize?")
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = {**asked, "user": user}
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], 'iss': self.issuer})}"

    def answer(self, path: str, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        if path == "/.well-known/openid-configuration":
            names = {
                "jwks_uri": "keys",
                "token_endpoint": "token",
                "authorization_endpoint": "authorize",
                "revocation_endpoint": "revoke",
            }
            document: dict[str, Any] = {name: f"{self.issuer}/{end}" for name, end in names.items()}
            return 200, {**document, "issuer": self.issuer, "authorization_response_iss_parameter_supported": True}
        if path == "/keys":
            return 200, public(self.key)
        if path == "/revoke":
            self.revoked.append(form["token"])
            return 200, {}
        if path == "/token" and form.get("grant_type") == "refresh_token":
            user = self._refresh.pop(form["refresh_token"], "") if self.renews else ""
            self.renewals += bool(user)
            return (200, self._tokens(user, None)) if user else (400, {"error": "invalid_grant"})
        asked = self._codes.pop(form.get("code", ""), None)
        if path != "/token" or asked is None:
            return 400, {"error": "invalid_grant"}
        challenge = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if challenge != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        return 200, self._tokens(asked["user"], asked["nonce"])

    def _tokens(self, user: str, nonce: str | None) -> dict[str, Any]:
        now = time.time()
        lifetime = self.lifetime if nonce is not None else self.renewed_lifetime
        stated = {"iss": self.issuer, "sub": user, "iat": now, "exp": now + lifetime, "groups": [f"of-{user}"]}
        access = signed(self.key, "ES256", {**stated, "aud": AUDIENCE, "jti": secrets.token_hex(8)})
        identity = signed(self.key, "ES256", {**stated, "aud": CLIENT, "nonce": nonce, **self.id_claims})
        refresh = secrets.token_urlsafe(16)
        self._refresh[refresh] = user
        self.issued += [access, identity, refresh]
        return {"token_type": "Bearer", "access_token": access, "id_token": identity, "refresh_token": refresh}


@contextmanager
def code_provider() -> Iterator[CodeProvider]:
    served: list[CodeProvider] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({})

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            self._send(dict(parse_qsl(content.decode())))

        def _send(self, form: Mapping[str, str]) -> None:
            status, document = served[0].answer(self.path, form)
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.append(CodeProvider(server.server_address[1]))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield served[0]
        finally:
            server.shutdown()
            thread.join()
