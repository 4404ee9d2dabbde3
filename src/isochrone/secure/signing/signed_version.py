"""What a verified signature states about a model version, and the error of one that does not count. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from isochrone.errors import InvalidArgument

#: Characters of a fingerprint that people see: enough to tell keys apart, not to authenticate one.
_SHOWN = 16
#: Of texts that a signature or a worker states.
_LONGEST = 200


class SignatureRefused(InvalidArgument):
    """A version is not signed, is not what was signed, or was signed by nobody who is trusted."""

    code = "signature"


class Provenance(msgspec.Struct, frozen=True):
    """Who signed a version, when, and from what. The signer states the last two."""

    signer: str
    """The identity in the certificate, or the fingerprint of the key."""
    key: str
    """SHA-256 of the public key in DER, in hexadecimal."""
    at: str = ""
    """As in 2026-11-18T12:00:00Z; "": not stated."""
    source: str = ""
    """Such as a commit or a training run; "": not stated."""

    @property
    def summary(self) -> str:
        when = f" at {self.at}" if self.at else ""
        return f"{self.signer}{when}" + (f" from {self.source}" if self.source else "")


@dataclass(frozen=True, slots=True)
class SignedVersion:
    """The content of one verified signature."""

    model: str
    version: str
    files: Mapping[str, str]
    """Path relative to the model's directory → SHA-256 in hexadecimal."""
    provenance: Provenance


def name_of_key(fingerprint: str) -> str:
    return f"key sha256:{fingerprint[:_SHOWN]}"


def subject(model: str, version: int | str) -> str:
    """The name that a signature is made for: a signature of one version says nothing about another."""
    return f"{model}/{version}"


def plain_text(given: object) -> str:
    """A text that a signature states, fit for a terminal and a log; "": it is none."""
    return given if isinstance(given, str) and len(given) <= _LONGEST and given.isprintable() else ""
