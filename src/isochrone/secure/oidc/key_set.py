"""The public keys of a provider, read from its JSON Web Key Set. Pure.

A key that this server cannot use is left out: sets also have keys for encryption, and new kinds of keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from isochrone.errors import Unauthenticated, Unsupported

#: Keys of one set. A provider has two or three.
MOST_KEYS: Final = 64
#: NIST SP 800-57: below, an RSA key is too weak; above, verifying costs milliseconds.
_LEAST_RSA_BITS: Final = 2048
_MOST_RSA_BITS: Final = 8192
#: The key's type and curve → the signatures it verifies.
_SIGNATURES_OF: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    # RFC 9864 gives EdDSA with this curve a name of its own; both are the same signature.
    ("OKP", "Ed25519"): ("EdDSA", "Ed25519"),
}


class UnusableKeys(ValueError):
    """A document that is no key set, or one without a usable key; the message says why."""


class UnknownKey(Unauthenticated):
    """The token names a key that is not at hand. The provider may have a new one: fetch the keys, then verify again."""


class PublicKey(NamedTuple):
    key_id: str | None
    #: What it may verify.
    algorithms: tuple[str, ...]
    #: joserfc's key.
    key: Any


class KeySet:
    """The usable keys of a set; ``fetched`` in seconds since 1970."""

    __slots__ = ("_keys", "fetched", "left_out")

    def __init__(self, keys: tuple[PublicKey, ...], fetched: float, left_out: tuple[str, ...] = ()) -> None:
        self._keys = keys
        self.fetched = fetched
        #: Why a key of the document is not here, one reason per key.
        self.left_out = left_out

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key_id: str | None, algorithm: str) -> Any:
        """The key that verifies a token. A token without a key id has one key that it can mean, or none."""
        if key_id is None:
            if len(self._keys) != 1:
                raise Unauthenticated(f"the token's header has no kid, and the provider has {len(self._keys)} keys")
            named = list(self._keys)
        else:
            named = [key for key in self._keys if key.key_id == key_id]
        if not named:
            raise UnknownKey(f"the token's kid is none of the {len(self._keys)} keys of the provider that are at hand")
        for key in named:
            if algorithm in key.algorithms:
                return key.key
        raise Unauthenticated("the token's alg is not one of the key that its kid names")


def read_key_set(document: Mapping[str, Any], fetched: float) -> KeySet:
    given = document.get("keys")
    if not isinstance(given, list):
        raise UnusableKeys("the key set has no list named keys")
    if len(given) > MOST_KEYS:
        raise UnusableKeys(f"the key set has more than {MOST_KEYS} keys")
    keys: list[PublicKey] = []
    left_out: list[str] = []
    for each in given:
        try:
            keys.append(_read_key(each))
        except UnusableKeys as error:
            left_out.append(str(error))
    _check_names(keys)
    if not keys:
        reasons = ", ".join(sorted(set(left_out))) or "it is empty"
        raise UnusableKeys(f"the key set has no key that verifies signatures: {reasons}")
    return KeySet(tuple(keys), fetched, tuple(left_out))


def _check_names(keys: list[PublicKey]) -> None:
    """A key id with an algorithm names one key (RFC 7517, section 4.5)."""
    if len(keys) > 1 and any(key.key_id is None for key in keys):
        raise UnusableKeys("the key set has several keys, and one without a kid")
    names = [(key.key_id, algorithm) for key in keys for algorithm in key.algorithms]
    if len(set(names)) != len(names):
        raise UnusableKeys("the key set has one kid for two keys")


def _read_key(given: Any) -> PublicKey:
    if not isinstance(given, dict):
        raise UnusableKeys("an entry is no object")
    kind, curve, key_id = given.get("kty"), given.get("crv", ""), given.get("kid")
    if not (isinstance(kind, str) and isinstance(curve, str) and (key_id is None or isinstance(key_id, str))):
        raise UnusableKeys("kty, crv or kid of a key is no string")
    algorithms = _SIGNATURES_OF.get((kind, curve), ())
    if not algorithms:
        raise UnusableKeys("another type of key than RSA, EC P-256, P-384, P-521 and Ed25519")
    if "d" in given:
        raise UnusableKeys("a private key is published; the provider must replace it")
    operations = given.get("key_ops", ["verify"])
    if given.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        raise UnusableKeys("a key for another use than signatures")
    if "alg" in given:
        algorithms = tuple(name for name in algorithms if _is_same(name, given["alg"], curve))
        if not algorithms:
            raise UnusableKeys("a key whose alg does not fit its type")
    return PublicKey(key_id, algorithms, _import(given, kind))


def _is_same(name: str, given: Any, curve: str) -> bool:
    return name == given or (curve == "Ed25519" and given in ("EdDSA", "Ed25519"))


def _import(given: dict[str, Any], kind: str) -> Any:
    jwk, _ = libraries()
    wanted = ("kty", "crv", "n", "e", "x", "y")
    try:
        key = jwk.import_key({name: given[name] for name in wanted if name in given}, kind)
        # Made now: a point that is not on its curve is an error here, not at the first token.
        public = key.get_op_key("verify")
    except Exception as error:
        # joserfc and cryptography raise errors of many classes for numbers that are no key.
        raise UnusableKeys("a key with values that are no key") from error
    if kind == "RSA":
        numbers = public.public_numbers()
        if not _LEAST_RSA_BITS <= public.key_size <= _MOST_RSA_BITS:
            raise UnusableKeys(f"an RSA key of less than {_LEAST_RSA_BITS} or more than {_MOST_RSA_BITS} bits")
        if numbers.e < 3 or numbers.e.bit_length() > 64:
            raise UnusableKeys("an RSA key with an unusual exponent")
    return key


def libraries() -> tuple[Any, Any]:
    """joserfc's modules for keys and for signatures. Imported here: only servers that accept tokens need them."""
    try:
        from joserfc import jwk, jws
    except ImportError:
        raise Unsupported("tokens of OpenID providers need joserfc: pip install 'isochrone[secure]'") from None
    return jwk, jws
