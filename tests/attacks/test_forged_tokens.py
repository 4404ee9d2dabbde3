"""Tokens of an OpenID provider that its keys did not sign, or that are not meant here, at a real worker and gateway."""

from __future__ import annotations

import hmac
import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from guarded_servers import ask
from key_server import key_server
from provider_site import Site, provider_site

from gateway_process import StartGateway
from isochrone.secure.access.tokens import digest_of, new_token
from issued_tokens import AUDIENCE, key, segment, signed
from server_process import StartServer
from watching import wait_for

CURVE, RSA, FOREIGN = key("curve", "EC", "P-256"), key("rsa"), key("foreign", "EC", "P-256")
ROBOT = new_token()
ROBOTS_LINE = f", robot: {{sha256: {digest_of(ROBOT)}}}"


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer, gateway_factory: StartGateway
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with provider_site(folder, server_factory, gateway_factory, CURVE, RSA, tokens=ROBOTS_LINE) as made:
        yield made


def refused(site: Site, tokens: dict[str, str], tried: Counter[str], row: str) -> None:
    """By both servers; and good ones are let through before and after."""
    for name, server in site.servers.items():
        assert site.status(site.token(), server) == 200
        assert site.status(site.token(RSA), server) == 200
        for kind, token in tokens.items():
            assert site.status(token, server) == 401, (name, kind)
            tried[row] += 1
        assert site.status(site.token(), server) == 200


def claims(site: Site, **changes: Any) -> dict[str, Any]:
    made = {"iss": site.provider.issuer, "aud": AUDIENCE, "sub": "ada", "exp": time.time() + 600, **changes}
    return {name: value for name, value in made.items() if value is not None}


def test_signatures_by_a_shared_secret(site: Site, tried: Counter[str]) -> None:
    """HS256 with what everybody knows: the provider's public keys in every form, and secrets that people choose."""
    secrets: dict[str, bytes] = {"no secret": b""}
    for each in (CURVE, RSA):
        public = each.get_op_key("verify")
        pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        jwk = each.as_dict(private=False)
        forms = {
            "PEM": pem,
            "PEM without its last line end": pem.rstrip(),
            "DER": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
            "JWK": json.dumps(jwk).encode(),
            "JWK without spaces": json.dumps(jwk, separators=(",", ":")).encode(),
            "JWK Set": json.dumps({"keys": [jwk]}).encode(),
            "a number of the JWK": str(jwk.get("n") or jwk.get("x")).encode(),
        }
        secrets.update({f"{form} of {each.kid}": secret for form, secret in forms.items()})
    for weak in (
        "secret",
        "password",
        "changeme",
        "your-256-bit-secret",
        "plant",
        AUDIENCE,
        site.provider.issuer,
        "rsa",
    ):
        secrets[weak] = weak.encode()
    payload = segment(claims(site))
    tokens = {}
    for name, secret in secrets.items():
        for algorithm, digest in (("HS256", "sha256"), ("HS512", "sha512"), ("hs256", "sha256")):
            for kid in ("curve", "rsa"):
                text = f"{segment({'alg': algorithm, 'kid': kid, 'typ': 'JWT'})}.{payload}"
                tokens[f"{algorithm}, {name}, {kid}"] = f"{text}.{segment(hmac.digest(secret, text.encode(), digest))}"
    refused(site, tokens, tried, "signed tokens: a shared secret in place of the key")


def test_tokens_without_a_signature(site: Site, tried: Counter[str]) -> None:
    good = site.token()
    head, payload, signature = good.split(".")
    tokens = {}
    for name in ("none", "None", "NONE", "nOnE", "", " none", "null", None, 0, ["none"], ["none", "ES256"]):
        for kid in ("curve", "rsa"):
            start = f"{segment({'alg': name, 'kid': kid, 'typ': 'JWT'})}.{payload}"
            for end in (".", "", f".{signature}", ".AA", ".."):
                tokens[f"{name} {kid} {end}"] = start + end
    twice = segment(b'{"alg": "none", "kid": "curve", "alg": "ES256"}')
    other = segment(b'{"alg": "ES256", "kid": "curve", "alg": "none"}')
    tokens |= {"alg twice": f"{twice}.{payload}.", "alg twice, turned round": f"{other}.{payload}.{signature}"}
    tokens |= {"a signature of zeros": f"{head}.{payload}.{segment(bytes(64))}"}
    refused(site, tokens, tried, "signed tokens: no signature, or alg none")


def test_claims_of_others(site: Site, tried: Counter[str]) -> None:
    now = time.time()
    changes: dict[str, dict[str, Any]] = {
        "audience": {"aud": "https://other.example"},
        "audiences": {"aud": ["https://other.example", AUDIENCE + "/"]},
        "a longer audience": {"aud": AUDIENCE + ".evil.example"},
        "no audience": {"aud": None},
        "an audience that is an object": {"aud": {AUDIENCE: True}},
        "issuer": {"iss": "https://evil.example"},
        "an issuer with a slash": {"iss": site.provider.issuer + "/"},
        "an issuer by another name": {"iss": site.provider.issuer.replace("127.0.0.1", "localhost")},
        "no issuer": {"iss": None},
        "issuers": {"iss": [site.provider.issuer]},
        "expired": {"exp": now - 100},
        "expires as text": {"exp": str(now + 600)},
        "expires never": {"exp": None},
        "expires at a number beyond all": {"exp": float("inf")},
        "not yet": {"nbf": now + 1000},
        "no subject": {"sub": None},
        "subject that is a list": {"sub": ["ada"]},
    }
    tokens = {name: signed(CURVE, "ES256", claims(site, **each)) for name, each in changes.items()}
    refused(site, tokens, tried, "signed tokens: of another audience, issuer or time")
    for server in site.servers.values():
        # Genuine, of the provider's: and of nobody that the access file knows.
        for subject in ("ADA", "ada ", "ada\0", "plant/ada", "oidc:plant/ada", "token:gateway", "*", "../ada"):
            assert site.status(signed(CURVE, "ES256", claims(site, sub=subject)), server) in (401, 403), subject
            tried["signed tokens: a subject that looks like another"] += 1


def test_keys_that_a_token_names_or_brings(site: Site, tried: Counter[str]) -> None:
    """The header is the attacker's: it names no file, no query, no key but the provider's, and no address."""

    def forged(by: Any = FOREIGN, algorithm: str = "ES256", **header: Any) -> str:
        return signed(by, algorithm, claims(site), {"alg": algorithm, "typ": "JWT", **header})

    kids: list[Any] = [
        *("../../../../dev/null", "/dev/null", "file:///dev/null", "curve\0", "CURVE", " curve", "curve/../rsa", ""),
        *("' UNION SELECT 'k' --", "' OR 1=1 --", "$(id)", "|id", "%2e%2e%2fcurve", "__proto__", "x" * 5000),
        *(None, 0, True, ["curve"], {"curve": 1}),
    ]
    tokens = {f"kid {str(kid)[:30]}": forged(kid=kid) for kid in kids}
    tokens |= {f"kid {str(kid)[:30]}, genuine": forged(CURVE, kid=kid) for kid in kids}
    text = f"{segment({'alg': 'HS256', 'kid': '../../../../dev/null'})}.{segment(claims(site))}"
    tokens |= {
        "kid of an empty file as secret": f"{text}.{segment(hmac.digest(b'', text.encode(), 'sha256'))}",
        "no kid": forged(),
        "no kid, genuine, of two keys": forged(CURVE),
        "kid of the other key": forged(CURVE, kid="rsa"),
        "kid of the other key, turned round": forged(RSA, "RS256", kid="curve"),
        "a foreign key under a known kid": forged(kid="curve"),
    }
    refused(site, tokens, tried, "signed tokens: kid as path, query, or of another key")

    with key_server(FOREIGN) as attacker:
        url, mine = f"{attacker.issuer}/keys", FOREIGN.as_dict(private=False)
        brought: list[dict[str, Any]] = [
            {"jwk": mine},
            {"jwk": mine, "kid": "curve"},
            {"jwk": FOREIGN.as_dict(private=True), "kid": "foreign"},
            {"jwks": {"keys": [mine]}, "kid": "foreign"},
            {"jku": url, "kid": "foreign"},
            {"jku": url, "kid": "curve"},
            {"jku": f"{site.provider.issuer}@{url.removeprefix('http://')}", "kid": "foreign"},
            {"x5u": url, "kid": "foreign"},
            {"x5c": ["MIIB"], "kid": "curve"},
            {"x5t": "AAAA", "x5u": url},
            {"iss": attacker.issuer, "jku": url, "kid": "foreign"},
            {"kid": url},
        ]
        tokens = {f"{number}: {list(header)}": forged(**header) for number, header in enumerate(brought)}
        tokens["an issuer of its own"] = signed(FOREIGN, "ES256", claims(site, iss=attacker.issuer))
        tokens["crit"] = forged(CURVE, kid="curve", crit=["exp"])
        tokens["b64 false"] = forged(CURVE, kid="curve", crit=["b64"], b64=False)
        refused(site, tokens, tried, "signed tokens: a key or an address that the token brings")
        assert attacker.requests == 0, "a server asked an address that a token named"
        tried["signed tokens: addresses in tokens → named, never asked"] += len(tokens)
        assert ask(int(attacker.issuer.rpartition(":")[2]), "GET", "/keys")[0] == 200
        assert attacker.requests == 1


def test_what_is_taken_out_of_the_access_file_is_refused(site: Site, tried: Counter[str]) -> None:
    """A token of the file that is revoked, and tokens of a provider that is taken out: both have been used before."""
    issued = [site.token() for _ in range(3)]
    for server in site.servers.values():
        assert [site.status(token, server) for token in (*issued, ROBOT)] == [200] * 4
    before = site.access.read_text()
    try:
        site.access.write_text(before.replace(ROBOTS_LINE, ROBOTS_LINE.replace("}", ", revoked: true}")))
        for server in site.servers.values():
            wait_for(lambda at=server: site.status(ROBOT, at) == 401)
            assert site.status(issued[0], server) == 200
            for token in (ROBOT, ROBOT, ROBOT.upper(), ROBOT[:-1]):
                assert site.status(token, server) == 401
                tried["a revoked API token, replayed"] += 1
        lines = [line for line in before.splitlines() if not line.startswith("providers")]
        site.access.write_text("\n".join(lines).replace('"oidc:plant/ada", ', "") + "\n")
        for server in site.servers.values():
            wait_for(lambda at=server: site.status(issued[0], at) == 401)
            for token in (*issued, site.token(), site.token(RSA)):
                assert site.status(token, server) == 401
                tried["signed tokens: of a provider that was taken out"] += 1
            assert site.status(ROBOT, server) == 200
    finally:
        site.access.write_text(before)
    for server in site.servers.values():
        wait_for(lambda at=server: site.status(issued[0], at) == 200)
