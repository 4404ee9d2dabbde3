"""The error of a version that cannot be decrypted, or that is not encrypted where it must be."""

from __future__ import annotations

from isochrone.errors import InvalidArgument


class EncryptionRefused(InvalidArgument):
    """A version has no usable key, is not what was encrypted, or is not encrypted. No text has a key."""

    code = "encryption"


class NoKey(EncryptionRefused):
    """The version may be as it was encrypted: this process has no key that says so."""
