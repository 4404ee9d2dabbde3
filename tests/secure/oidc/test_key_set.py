"""Key sets of providers: which keys are used, and sets that are none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwk

from isochrone.secure.oidc.key_set import MOST_KEYS, UnusableKeys, read_key_set
from issued_tokens import NOW, key, key_set, public

RSA, EC, ED = key("rsa"), key("ec", "EC", "P-256"), key("ed", "OKP", "Ed25519")


def entry(of: Any, **changes: Any) -> dict[str, Any]:
    stated = {**of.as_dict(private=False), **changes}
    return {name: value for name, value in stated.items() if value is not None}


def left_out(*entries: Any) -> str:
    """Why these are not used, beside a key that is."""
    found = read_key_set({"keys": [entry(EC), *entries]}, NOW)
    assert len(found) == 1
    return " ".join(found.left_out)


def test_keys_by_kid_and_algorithm() -> None:
    found = key_set(RSA, EC, ED)
    assert len(found) == 3
    for of, algorithm in ((RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (ED, "EdDSA"), (ED, "Ed25519")):
        assert found.find(of.kid, algorithm).thumbprint() == of.thumbprint()


def test_one_kid_may_name_keys_of_two_types() -> None:
    """RFC 7517, section 4.5: equivalent alternatives."""
    found = read_key_set({"keys": [entry(RSA, kid="a"), entry(EC, kid="a")]}, NOW)
    assert found.find("a", "RS256").key_type == "RSA"
    assert found.find("a", "ES256").key_type == "EC"


def test_the_keys_own_alg_is_its_only_one() -> None:
    found = read_key_set({"keys": [entry(RSA, alg="PS256"), entry(ED, alg="EdDSA")]}, NOW)
    assert found.find("rsa", "PS256")
    assert found.find("ed", "Ed25519")
    with pytest.raises(Exception, match="alg is not one of the key"):
        found.find("rsa", "RS256")


def test_keys_that_are_left_out() -> None:
    assert "another use" in left_out(entry(RSA, use="enc"))
    assert "another use" in left_out(entry(RSA, key_ops=["sign"]))
    assert "another use" in left_out(entry(RSA, key_ops="verify it"))
    assert "private key" in left_out(RSA.as_dict(private=True))
    assert "another type" in left_out({"kty": "oct", "k": "c2VjcmV0", "kid": "a"})
    assert "another type" in left_out(entry(key("k1", "EC", "secp256k1")))
    assert "alg does not fit" in left_out(entry(RSA, alg="HS256"))
    assert "no string" in left_out(entry(RSA, kid=7))
    assert "no object" in left_out("key")
    assert "values that are no key" in left_out(entry(RSA, n="!"))
    assert "values that are no key" in left_out(entry(RSA, n=None))
    assert "values that are no key" in left_out(entry(ED, x="AAAA"))
    # A point that is not on the curve.
    assert "values that are no key" in left_out(entry(EC, kid="b", x="A" * 43))


@pytest.mark.filterwarnings("ignore:Key size should be")
def test_a_short_rsa_key_is_left_out() -> None:
    short = jwk.generate_key("RSA", 1024, {"kid": "short"}, private=True)
    assert "2048" in left_out(entry(short))


def test_an_rsa_key_with_exponent_one_is_left_out() -> None:
    """Every message would be its own signature."""
    assert left_out(entry(RSA, e="AQ"))


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({}, "no list"),
        ({"keys": {}}, "no list"),
        ({"keys": []}, "it is empty"),
        ({"keys": [{"kty": "oct", "k": "AAAA"}]}, "no key that verifies signatures: another type"),
        ({"keys": [entry(EC)] * 2}, "one kid for two keys"),
        ({"keys": [entry(RSA, kid="a"), entry(key("other"), kid="a")]}, "one kid for two keys"),
        ({"keys": [entry(RSA, kid=None), entry(EC)]}, "one without a kid"),
        ({"keys": [{}] * (MOST_KEYS + 1)}, "more than 64"),
    ],
)
def test_sets_that_are_refused(document: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableKeys, match=reason):
        read_key_set(document, NOW)


_VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=50) | st.lists(st.text(max_size=5), max_size=3)


@given(
    st.sampled_from([RSA, EC, ED]),
    st.dictionaries(st.sampled_from(["kty", "crv", "n", "e", "x", "y", "kid", "use", "alg", "key_ops", "d"]), _VALUES),
)
def test_any_key_is_read_or_left_out(of: Any, changes: dict[str, Any]) -> None:
    try:
        found = read_key_set({"keys": [{**public(of)["keys"][0], **changes}]}, NOW)
    except UnusableKeys:
        return
    assert len(found) == 1
