"""Tokens of an OpenID provider at a real worker: forged ones are refused, and keys may be rotated meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from guarded_servers import ask, inference
from key_server import key_server

from issued_tokens import key, segment, signed
from sample_models import write_models
from server_process import StartServer
from watching import wait_for

AUDIENCE = "https://fleet.example"
PATH = "/v2/models/identity_fp32/infer"


def test_forged_tokens_are_refused_and_rotated_keys_found(
    tmp_path: Path, server_factory: StartServer, tried: Counter[str]
) -> None:
    first, second, foreign = key("first"), key("second"), key("foreign")
    curve = key("curve", "EC", "P-256")
    with key_server(first, curve) as provider:
        (tmp_path / "access.yaml").write_text(
            f"""
providers:
  plant: {{issuer: "{provider.issuer}", audience: "{AUDIENCE}", refresh_seconds: 10}}
assign:
  - {{to: ["group:plant/pilots", "oidc:plant/ada"], roles: [caller]}}
  - {{to: ["group:pilots", "oidc:ada", "token:*"], roles: [admin]}}
"""
        )

        def claims(**changes: Any) -> dict[str, Any]:
            now = time.time()
            made = {"iss": provider.issuer, "aud": AUDIENCE, "sub": "ada", "exp": now + 600, "iat": now, **changes}
            return {name: value for name, value in made.items() if value is not None}

        repository = write_models(tmp_path / "models", "identity_fp32")
        with server_factory(repository, "--access", str(tmp_path / "access.yaml")) as server:

            def status(token: str) -> int:
                return ask(server.http_port, "POST", PATH, {"authorization": f"Bearer {token}"}, inference())[0]

            good = signed(first, "RS256", claims())
            assert status(good) == 200
            assert status(signed(curve, "ES256", claims(sub="bob", groups=["pilots"]))) == 200
            # A name without its provider's is not that of the access file: neither of them is an administrator.
            assert ask(server.http_port, "GET", "/v2/logging", {"authorization": f"Bearer {good}"})[0] == 403
            assert status(signed(first, "RS256", claims(sub="bob"))) == 403
            assert status(signed(first, "RS256", claims(sub="bob", groups=["plant/pilots", "token:a"]))) == 403

            head, body, signature = good.split(".")
            now = time.time()
            forged = {
                "alg none": f"{segment({'alg': 'none'})}.{body}.",
                "alg none with a signature": f"{segment({'alg': 'none', 'kid': 'first'})}.{body}.{signature}",
                "no signature": f"{head}.{body}.",
                "another body": f"{head}.{segment(claims(sub='root'))}.{signature}",
                "a foreign key under a known kid": signed(
                    foreign, "RS256", claims(), {"alg": "RS256", "kid": "first", "typ": "JWT"}
                ),
                "a key of its own": signed(
                    foreign,
                    "RS256",
                    claims(),
                    {"alg": "RS256", "jwk": foreign.as_dict(private=False), "jku": f"{provider.issuer}/keys"},
                ),
                "expired": signed(first, "RS256", claims(exp=now - 100)),
                "never expires": signed(first, "RS256", claims(exp=None)),
                "not yet valid": signed(first, "RS256", claims(nbf=now + 1000)),
                "of another issuer": signed(first, "RS256", claims(iss="https://evil.example")),
                "for another audience": signed(first, "RS256", claims(aud="https://other.example")),
                "another kind of key": signed(curve, "ES256", claims(), {"alg": "ES256", "kid": "first"}),
                "an algorithm that is not accepted": signed(first, "RS512", claims()),
                "too many segments": f"{good}.x",
            }
            for name, token in forged.items():
                assert status(token) == 401, name
                tried["forged and misused signed tokens"] += 1

            # Strangers' unknown keys cause no flood of fetches.
            before = provider.fetches
            for number in range(200):
                other = signed(foreign, "RS256", claims(), {"alg": "RS256", "kid": f"k{number}", "typ": "JWT"})
                assert status(other) == 401
                tried["signed tokens with unknown keys"] += 1
            assert provider.fetches - before <= 3 + (time.time() - now) / 10

            # Rotation: the new key is published and used, the old one withdrawn.
            provider.keys = (second,)
            rotated = signed(second, "RS256", claims(sub="ada"))
            wait_for(lambda: status(rotated) == 200)
            wait_for(lambda: status(good) == 401)
            tried["a token whose key was withdrawn"] += 1
            assert not any(token in server.log_text() for token in (good, rotated, signature))
