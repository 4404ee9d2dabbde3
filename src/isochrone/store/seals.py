"""Seals of values: what proves that a process with the fleet's key wrote a value, and under which key of the store.

A seal is a trailer of fixed length, after the value. A process without a key does not check it and takes it off, so
that processes with and without a key read each other's values. A value that is refused is delivered as ``refused``
makes it: no record decodes from it, and ``refusal`` says why. Pure.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final

_MARK: Final = b"\n#sealed 1 "
_DIGITS: Final = 64
_LENGTH: Final = len(_MARK) + _DIGITS
#: No JSON, no number and no name begins with it.
_REFUSED: Final = b"\x00refused: "

NO_SEAL: Final = "it is not sealed with the fleet's key"
WRONG_SEAL: Final = "its seal is not of the fleet's key, or is another record's"


class Seal:
    """``keys``: the first one seals, all are accepted; none: nothing is sealed or checked. ``accepts_unsealed``: values
    without a seal are accepted, those with a wrong one never."""

    __slots__ = ("_keys", "accepts_unsealed")

    def __init__(self, keys: Sequence[bytes] = (), *, accepts_unsealed: bool = False) -> None:
        self._keys = tuple(keys)
        self.accepts_unsealed = accepts_unsealed

    @property
    def has_key(self) -> bool:
        return bool(self._keys)

    def understands(self, other: Seal) -> bool:
        """Whether processes with this seal and with the other one accept what both write."""
        if not self._keys or not other._keys:
            return True
        return self._keys[0] in other._keys and other._keys[0] in self._keys

    def seal(self, key: str, value: bytes) -> bytes:
        """The value as it is written under a key of the store."""
        return value + _MARK + _digits(self._keys[0], key, value) if self._keys else value

    def open(self, key: str, value: bytes) -> tuple[bytes, bool]:
        """The value as readers get it, and whether it carries a seal, of the first key if there is one."""
        if value[-_LENGTH:-_DIGITS] != _MARK:
            if self._keys and not self.accepts_unsealed:
                return refused(NO_SEAL), False
            return value, False
        inner = value[:-_LENGTH]
        if not self._keys:
            return inner, True
        given = value[-_DIGITS:]
        for number, each in enumerate(self._keys):
            if hmac.compare_digest(given, _digits(each, key, inner)):
                return inner, number == 0
        return refused(WRONG_SEAL), False


def refused(reason: str) -> bytes:
    """What readers get in place of a value."""
    return _REFUSED + reason.encode()


def refusal(value: bytes) -> str:
    """Why a value was refused; "": it was not."""
    return value[len(_REFUSED) :].decode("utf-8", "replace") if value.startswith(_REFUSED) else ""


def _digits(secret: bytes, key: str, value: bytes) -> bytes:
    name = key.encode("utf-8", "surrogatepass")
    # The length comes first: no other key and value give the same bytes.
    return hmac.digest(secret, len(name).to_bytes(4, "big") + name + value, "sha256").hex().encode()
