"""Tokens of strangers: each attack is rejected for its own reason, and the error has nothing of the token."""

from __future__ import annotations

import hmac
import json
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import Unauthenticated
from isochrone.secure.oidc.claims import Claims
from isochrone.secure.oidc.key_set import UnknownKey
from isochrone.secure.oidc.tokens import MOST_BYTES
from isochrone.secure.oidc.verifier import Verifier
from issued_tokens import AUDIENCE, ISSUER, NOW, PROVIDER, claims, key, segment, signed, verifier

RSA, OTHER_RSA = key("rsa"), key("other")
EC, ED = key("ec", "EC", "P-256"), key("ed", "OKP", "Ed25519")


def refusal(token: str, by: Verifier | None = None, now: float = NOW) -> str:
    with pytest.raises(Unauthenticated) as refused:
        (by or verifier(RSA)).verify(token, now)
    assert refused.value.http_status == 401
    assert refused.value.grpc_status == 16
    return str(refused.value)


@pytest.mark.parametrize(
    ("algorithm", "signer"),
    [
        *(("RS256", RSA), ("PS256", RSA), ("ES256", EC), ("ES384", key("p384", "EC", "P-384"))),
        *(("ES512", key("p521", "EC", "P-521")), ("EdDSA", ED), ("Ed25519", ED)),
    ],
)
def test_a_token_of_the_provider(algorithm: str, signer: Any) -> None:
    by = verifier(RSA, EC, signer) if signer not in (RSA, EC) else verifier(RSA, EC)
    by = Verifier(replace(PROVIDER, algorithms=(algorithm,))) if algorithm not in PROVIDER.algorithms else by
    by.keys = verifier(signer).keys
    token = signed(signer, algorithm, claims(groups=["ops", "ml", "ops"], name="Ada"))
    assert by.verify(token, NOW) == Claims(ISSUER, "ada", "ada", ("ops", "ml"), NOW + 600)


def test_name_and_groups_are_of_the_claims_that_the_settings_name() -> None:
    by = verifier(RSA, provider=replace(PROVIDER, name_claim="preferred_username", groups_claim="cognito:groups"))
    stated = claims(preferred_username="ada.l", groups=["no"], **{"cognito:groups": "ops"})
    found = by.verify(signed(RSA, "RS256", stated), NOW)
    assert (found.subject, found.name, found.groups) == ("ada", "ada.l", ("ops",))


# Signatures


def test_no_signature() -> None:
    payload = segment(claims())
    for name in ("none", "None", "NONE", "nOnE"):
        for signature in ("", "."):
            text = f"{segment({'alg': name, 'typ': 'JWT', 'kid': 'rsa'})}.{payload}.{signature}"
            assert "three segments" in refusal(text)
        assert "alg is none of" in refusal(f"{segment({'alg': name, 'kid': 'rsa'})}.{payload}.AAAA")


def test_a_signature_that_was_cut_off() -> None:
    token = signed(RSA, "RS256", claims())
    head, payload, signature = token.split(".")
    assert "three segments" in refusal(f"{head}.{payload}")
    assert "three segments" in refusal(f"{head}.{payload}.")
    assert "base64url" in refusal(f"{head}.{payload}.{signature[:-5]}")
    assert "signature" in refusal(f"{head}.{payload}.{signature[:-6]}")
    assert "signature" in refusal(f"{head}.{payload}.AAAA")


@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
def test_the_public_key_as_a_shared_secret(encoding: Encoding) -> None:
    """The classic confusion: HS256 over the public key, which everybody has."""
    secret = RSA.get_op_key("verify").public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
    text = f"{segment({'alg': 'HS256', 'kid': 'rsa', 'typ': 'JWT'})}.{segment(claims())}"
    token = f"{text}.{segment(hmac.digest(secret, text.encode(), 'sha256'))}"
    assert "alg is none of RS256" in refusal(token)


def test_an_algorithm_of_another_type_of_key() -> None:
    by = verifier(RSA, EC)
    assert "alg is not one of the key" in refusal(
        signed(EC, "ES256", claims(), {"alg": "ES256", "kid": "rsa", "typ": "JWT"}), by
    )
    assert "alg is not one of the key" in refusal(
        signed(RSA, "RS256", claims(), {"alg": "RS256", "kid": "ec", "typ": "JWT"}), by
    )


def test_an_algorithm_that_is_not_allowed() -> None:
    assert "alg is none of ES256" in refusal(
        signed(RSA, "RS256", claims()), verifier(RSA, provider=replace(PROVIDER, algorithms=("ES256",)))
    )
    # RS512 is a signature by the right key, and not one that this provider is to make.
    assert "alg is none of" in refusal(signed(RSA, "RS512", claims()))


@pytest.mark.parametrize("signature", [b"\0" * 64, b"\0" * 63 + b"\1", b"\xff" * 64, b"\0" * 32, b"\0" * 65, b"\0"])
def test_signatures_of_zeros(signature: bytes) -> None:
    """r = s = 0 was valid for the ECDSA of Java 15 to 18 (CVE-2022-21449)."""
    for signer, algorithm in ((EC, "ES256"), (ED, "EdDSA"), (RSA, "RS256")):
        text = signed(signer, algorithm, claims()).rpartition(".")[0]
        assert "signature" in refusal(f"{text}.{segment(signature)}", verifier(signer))


def test_a_key_that_the_token_brings() -> None:
    stranger = key("stranger")
    mine = stranger.as_dict(private=False)
    for brought in (
        {"jwk": mine},
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/chain"},
        {"x5c": ["MIIB"]},
        {"jwk": mine, "kid": "rsa"},
    ):
        header = {"alg": "RS256", "typ": "JWT", **brought}
        assert "signature" in refusal(signed(stranger, "RS256", claims(), header))


def test_another_key_under_the_kid_of_a_known_one() -> None:
    header = {"alg": "RS256", "kid": "rsa", "typ": "JWT"}
    assert "signature" in refusal(signed(OTHER_RSA, "RS256", claims(), header), verifier(RSA, EC))
    # Both are keys of the provider: a kid names one of them.
    assert "signature" in refusal(signed(OTHER_RSA, "RS256", claims(), header), verifier(RSA, OTHER_RSA))


@pytest.mark.parametrize("kid", ["nope", "../../etc/passwd", "rsa\0", "RSA", " rsa", "' OR 1=1"])
def test_an_unknown_kid_asks_for_new_keys(kid: str) -> None:
    with pytest.raises(UnknownKey):
        verifier(RSA).verify(signed(RSA, "RS256", claims(), {"alg": "RS256", "kid": kid}), NOW)


def test_a_token_of_another_issuer_never_asks_for_keys() -> None:
    for token in (
        signed(OTHER_RSA, "RS256", claims(iss="https://other.example")),
        signed(OTHER_RSA, "RS256", claims(aud="other")),
        signed(OTHER_RSA, "RS256", claims(exp=NOW - 600)),
    ):
        with pytest.raises(Unauthenticated) as refused:
            verifier(RSA).verify(token, NOW)
        assert not isinstance(refused.value, UnknownKey)


def test_a_token_without_kid_needs_a_single_key() -> None:
    token = signed(RSA, "RS256", claims(), {"alg": "RS256"})
    assert verifier(RSA).verify(token, NOW).subject == "ada"
    assert "no kid, and the provider has 2 keys" in refusal(token, verifier(RSA, EC))


@pytest.mark.parametrize("kid", [7, "", ["rsa"], {"rsa": 1}, True, "r" * 257])
def test_a_kid_that_is_no_name(kid: Any) -> None:
    assert "kid is not a string" in refusal(signed(RSA, "RS256", claims(), {"alg": "RS256", "kid": kid}))


def test_a_token_whose_payload_was_exchanged() -> None:
    head, _, signature = signed(RSA, "RS256", claims()).split(".")
    assert "signature" in refusal(f"{head}.{segment(claims(sub='root'))}.{signature}")


def test_a_header_that_was_exchanged() -> None:
    _, payload, signature = signed(RSA, "RS256", claims()).split(".")
    assert "signature" in refusal(f"{segment({'alg': 'PS256', 'kid': 'rsa'})}.{payload}.{signature}")


# Headers


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"crit": []}, {"b64": False, "crit": ["b64"]}, {"b64": True}])
def test_extensions_are_refused(header: dict[str, Any]) -> None:
    assert "extension" in refusal(signed(RSA, "RS256", claims(), {"alg": "RS256", "kid": "rsa", **header}))


@pytest.mark.parametrize("kind", ["logout+jwt", "secevent+jwt", "JOSE", "", None, 1, ["JWT"], "dpop+jwt"])
def test_tokens_of_another_kind(kind: Any) -> None:
    header = {"alg": "RS256", "kid": "rsa", "typ": kind}
    assert "typ" in refusal(signed(RSA, "RS256", claims(), header))


@pytest.mark.parametrize("kind", ["jwt", "at+jwt", "AT+JWT", "application/at+jwt"])
def test_tokens_of_the_right_kind(kind: str) -> None:
    token = signed(RSA, "RS256", claims(), {"alg": "RS256", "kid": "rsa", "typ": kind})
    assert verifier(RSA).verify(token, NOW).subject == "ada"


@pytest.mark.parametrize("algorithm", [None, 1, ["RS256"], {"RS256": 1}, True])
def test_an_alg_that_is_no_name(algorithm: Any) -> None:
    assert "no alg" in refusal(signed(RSA, "RS256", claims(), {"alg": algorithm, "kid": "rsa"}))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b"\xff\xfe{\0}\0",
        b'{"iss": NaN}',
        b'{"exp": Infinity}',
        b"[" * 3000,
        b'{"a":' * 1500,
        b'{"exp": ' + b"9" * 5000 + b"}",
        b"\xef\xbb\xbf{}",
        json.dumps(claims()).encode("utf-16"),
    ],
)
def test_what_is_no_object(payload: bytes) -> None:
    refusal(signed(RSA, "RS256", payload))
    refusal(signed(RSA, "RS256", claims(), payload))


def test_names_that_come_twice() -> None:
    """Of two readers one takes the first, one the last."""
    text = json.dumps(claims())
    for doubled in (text[:-1] + ', "sub": "root"}', text[:-1] + ', "x": {"a": 1, "a": 2}}'):
        assert "payload has a name twice" in refusal(signed(RSA, "RS256", doubled.encode()))
    header = b'{"alg": "none", "kid": "rsa", "alg": "RS256"}'
    assert "header has a name twice" in refusal(signed(RSA, "RS256", claims(), header))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none(number: str) -> None:
    payload = json.dumps(claims())[:-1] + f', "x": {number}}}'
    assert "payload has a number that is none" in refusal(signed(RSA, "RS256", payload.encode()))


def test_a_huge_token() -> None:
    assert "longer than" in refusal("a" * (MOST_BYTES + 1))
    assert "longer than" in refusal(signed(RSA, "RS256", claims(pad="x" * MOST_BYTES)))


@pytest.mark.parametrize(
    "change", ["{} ", " {}", "{}\n", "{}=", "{}.", ".{}", "{}.{}", "Bearer {}", "{}\0", "{}é", "{}+", "{}/"]
)
def test_other_spellings(change: str) -> None:
    refusal(change.replace("{}", signed(RSA, "RS256", claims())))


def test_spare_bits_of_a_segment() -> None:
    """The last character of some segments has bits that no byte has: a token would have several spellings."""
    token = signed(EC, "ES256", claims())
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = alphabet.index(token[-1])
    assert "base64url" in refusal(token[:-1] + alphabet[last | 1], verifier(EC))
    assert verifier(EC).verify(token, NOW)


# Claims


@pytest.mark.parametrize(
    "issuer", [None, "", ISSUER + "/", ISSUER.upper(), "http://issuer.example", [ISSUER], 1, ISSUER + "\n", True]
)
def test_other_issuers(issuer: Any) -> None:
    assert f"not of issuer {ISSUER}" in refusal(signed(RSA, "RS256", claims(iss=issuer)))


@pytest.mark.parametrize(
    "audience", [None, "", AUDIENCE + "/x", AUDIENCE[:-1], [], ["other"], [AUDIENCE, 1], [[AUDIENCE]], {AUDIENCE: 1}, 1]
)
def test_other_audiences(audience: Any) -> None:
    assert "aud does not contain" in refusal(signed(RSA, "RS256", claims(aud=audience)))


def test_one_of_several_audiences() -> None:
    assert verifier(RSA).verify(signed(RSA, "RS256", claims(aud=["other", AUDIENCE])), NOW)


def test_times_with_the_leeway() -> None:
    token = signed(RSA, "RS256", claims(exp=NOW + 10, nbf=NOW, iat=NOW))
    by = verifier(RSA)
    assert by.verify(token, NOW + 10 + 29.9).expires == NOW + 10
    assert "expired" in refusal(token, now=NOW + 10 + 30)
    assert by.verify(token, NOW - 30)
    assert "in the future" in refusal(token, now=NOW - 30.1)


@pytest.mark.parametrize("name", ["nbf", "iat"])
def test_not_yet_valid(name: str) -> None:
    assert f"{name} is in the future" in refusal(signed(RSA, "RS256", claims(**{name: NOW + 31})))


def test_a_token_that_never_expires() -> None:
    assert "no exp" in refusal(signed(RSA, "RS256", claims(exp=None)))


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("value", ["1900000000", True, [1], {}, -1, 1e300, 2**53, 10**400])
def test_times_that_are_none(name: str, value: Any) -> None:
    assert f"{name} is not a time" in refusal(signed(RSA, "RS256", claims(**{name: value})))


def test_a_null_is_no_time() -> None:
    payload = json.dumps({**claims(), "nbf": None}).encode()
    assert "nbf is not a time" in refusal(signed(RSA, "RS256", payload))


@pytest.mark.parametrize("subject", [None, "", 7, ["ada"], "a" * 256, "ada\n", "ada\0", "\x1b[2J", "\u202eada"])
def test_subjects_that_are_no_names(subject: Any) -> None:
    assert "sub is not a name" in refusal(signed(RSA, "RS256", claims(sub=subject)))


def test_a_lone_surrogate_is_no_name() -> None:
    payload = json.dumps(claims()).replace('"ada"', '"\\ud800"').encode()
    assert "sub is not a name" in refusal(signed(RSA, "RS256", payload))


@pytest.mark.parametrize("groups", [7, {"ops": 1}, [1], [["ops"]], ["ops", None], [""], "", ["a\n"], True])
def test_groups_that_are_no_names(groups: Any) -> None:
    assert "groups is not a list of names" in refusal(signed(RSA, "RS256", claims(groups=groups)))


def test_an_address_that_the_provider_has_not_verified() -> None:
    by = verifier(RSA, provider=replace(PROVIDER, name_claim="email"))
    for verified in (False, "false", 0, []):
        token = signed(RSA, "RS256", claims(email="root@example.com", email_verified=verified))
        assert "not verified" in refusal(token, by)
    token = signed(RSA, "RS256", claims(email="ada@example.com", email_verified=True))
    assert by.verify(token, NOW).name == "ada@example.com"


# Keys at hand


def test_no_keys_yet() -> None:
    with pytest.raises(UnknownKey, match="not been fetched yet"):
        Verifier(PROVIDER).verify(signed(RSA, "RS256", claims()), NOW)


def test_keys_that_are_too_old() -> None:
    by = verifier(RSA, fetched=NOW - PROVIDER.max_age_seconds - 1)
    with pytest.raises(UnknownKey, match="has not answered for 24 h"):
        by.verify(signed(RSA, "RS256", claims()), NOW)


def test_a_rotated_key_is_rejected_when_it_is_no_longer_published() -> None:
    by = verifier(RSA, OTHER_RSA)
    token = signed(RSA, "RS256", claims())
    assert by.verify(token, NOW)
    by.keys = verifier(OTHER_RSA).keys
    with pytest.raises(UnknownKey):
        by.verify(token, NOW)


# ID tokens of logins


def test_an_id_token_is_of_its_login_and_client() -> None:
    by = verifier(RSA, provider=replace(PROVIDER, audience="cli"))

    def token(**changes: Any) -> str:
        return signed(RSA, "RS256", claims(aud="cli", nonce="n", **changes))

    assert by.verify_login(token(), "n", NOW).subject == "ada"
    assert by.verify_login(token(azp="cli"), "n", NOW)
    assert by.verify_login(signed(RSA, "RS256", claims(aud=["cli", "b"], azp="cli")), None, NOW)
    for nonce, wrong in (("other", token()), ("", token()), ("n", token(azp="evil"))):
        with pytest.raises(Unauthenticated):
            by.verify_login(wrong, nonce, NOW)
    with pytest.raises(Unauthenticated, match="another client"):
        by.verify_login(signed(RSA, "RS256", claims(aud=["cli", "evil"])), None, NOW)


# Any bytes

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda content: content.decode("latin-1")))
def test_any_text_is_refused(text: str) -> None:
    refusal(text)


@given(
    st.dictionaries(st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "groups", "azp"]), _JSON),
    st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "jwk", "cty", "zip"]), _JSON),
)
def test_a_signed_token_with_any_claims_has_the_right_ones_or_is_refused(
    changes: dict[str, Any], header: dict[str, Any]
) -> None:
    payload = {**claims(), **changes}
    token = signed(ED, "EdDSA", payload, {"alg": "EdDSA", "kid": "ed", "typ": "JWT", **header})
    try:
        found = verifier(ED).verify(token, NOW)
    except Unauthenticated:
        return
    assert payload["iss"] == ISSUER
    assert AUDIENCE in payload["aud"]
    assert payload["exp"] + 30 > NOW
    assert found.subject == payload["sub"]
    assert "crit" not in header


@given(st.data())
def test_a_token_with_one_changed_character_is_refused(data: st.DataObject) -> None:
    token = signed(ED, "EdDSA", claims())
    position = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters(min_codepoint=33, max_codepoint=126).filter(lambda each: each != token[position]))
    refusal(token[:position] + other + token[position + 1 :], verifier(ED))


@given(st.binary(max_size=120))
def test_any_signature_is_refused(signature: bytes) -> None:
    for signer, algorithm in ((EC, "ES256"), (ED, "Ed25519"), (RSA, "PS256")):
        text = signed(signer, algorithm, claims()).rpartition(".")[0]
        refusal(f"{text}.{segment(signature)}", verifier(signer))


def test_an_error_tells_nothing_of_the_token() -> None:
    secret = "do-not-tell"
    for token in (
        signed(RSA, "RS256", claims(iss=secret)),
        signed(RSA, "RS256", claims(aud=secret)),
        signed(RSA, "RS256", claims(sub=secret + "\n")),
        signed(RSA, "RS256", claims(exp=secret)),
        signed(RSA, "RS256", claims(groups={secret: 1})),
        signed(RSA, "RS256", claims(), {"alg": secret, "kid": "rsa"}),
        signed(RSA, "RS256", claims(), {"alg": "RS256", "kid": secret}),
        signed(RSA, "RS256", claims(), {"alg": "RS256", "kid": "rsa", "typ": secret}),
        signed(RSA, "RS256", secret.encode()),
        secret,
    ):
        assert secret not in refusal(token)
