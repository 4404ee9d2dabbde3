"""What verifying a token of an OpenID provider costs: microseconds of CPU time, per algorithm.

    python -m bench.security.token_cost [--rounds 7] [--tokens 2000]

Each round verifies every token once, in the form in which servers do it for a token that they have not seen before; the
algorithms take turns. It prints the median and the best round. "unsigned" is all but the signature: what a token
with an unknown key costs. It does not show what a server's memo of verified tokens costs, nor caches that other work
has emptied.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable

from joserfc import jwk, jws

from isochrone.errors import Unauthenticated
from isochrone.secure.oidc.key_set import read_key_set
from isochrone.secure.oidc.settings import Provider
from isochrone.secure.oidc.verifier import Verifier

_KEYS = {"RS256": ("RSA", 2048), "PS256": ("RSA", 2048), "ES256": ("EC", "P-256"), "Ed25519": ("OKP", "Ed25519")}
_ISSUER = "https://login.example/realms/fleet"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--tokens", type=int, default=2000)
    given = options.parse_args()
    cases = {name: _case(name, given.tokens) for name in _KEYS}
    tokens, verifier = _case("RS256", given.tokens)
    # No keys: everything but the signature is checked.
    verifier.keys = None
    cases["unsigned"] = (tokens, verifier)
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(given.rounds):
        for name, (tokens, each) in cases.items():
            times[name].append(_microseconds(tokens, each.verify))
    print(f"{'':10} {'median µs':>10} {'best µs':>10}")
    for name, rounds in times.items():
        print(f"{name:10} {statistics.median(rounds):>10.1f} {min(rounds):>10.1f}")


def _case(algorithm: str, count: int) -> tuple[list[str], Verifier]:
    """Tokens as providers write them, and who verifies them."""
    kind, parameter = _KEYS[algorithm]
    key = jwk.generate_key(kind, parameter, {"kid": "key-1"}, private=True)  # type: ignore[call-overload]
    verifier = Verifier(Provider(_ISSUER, "fleet"))
    verifier.keys = read_key_set({"keys": [key.as_dict(private=False)]}, time.time())
    head = {"alg": algorithm, "kid": "key-1", "typ": "at+jwt"}
    signer = jws.JWSRegistry.algorithms[algorithm]
    groups = ["operators", "models", "robots", "night-shift"]
    tokens = []
    for number in range(count):
        claims = {
            "iss": _ISSUER,
            "aud": ["fleet", "account"],
            "sub": f"0f8fad5b-d9cb-469f-a165-{number:012}",
            "iat": time.time() - 60,
            "exp": time.time() + 86_400,
            "jti": f"7c9e6679-7425-40de-944b-{number:012}",
            "client_id": "isochrone",
            "scope": "openid infer",
            "groups": groups,
        }
        text = f"{_segment(head)}.{_segment(claims)}"
        tokens.append(f"{text}.{_encoded(signer.sign(text.encode(), key))}")
    return tokens, verifier


def _segment(content: object) -> str:
    return _encoded(json.dumps(content).encode())


def _encoded(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


def _microseconds(tokens: list[str], verify: Callable[[str, float], object]) -> float:
    now = time.time()
    started = time.process_time()
    for token in tokens:
        with contextlib.suppress(Unauthenticated):
            verify(token, now)
    return (time.process_time() - started) / len(tokens) * 1e6


if __name__ == "__main__":
    main()
