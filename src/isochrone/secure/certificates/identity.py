"""The identities in a peer's certificate. Pure.

Only subject alternative names count: a common name is free text, and nothing says that its signer has checked it.
Whether the certificate is valid has been decided before, by the handshake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def identities(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """URIs, then DNS names, of a certificate in the form of ``ssl.SSLObject.getpeercert``; () without a certificate.

    A URI has a colon and a DNS name has none, so that neither can be taken for the other; other values are left out.
    """
    if not certificate:
        return ()
    names: Iterable[tuple[str, str]] = certificate.get("subjectAltName", ())
    uris = [value for kind, value in names if kind == "URI" and ":" in value]
    hosts = [value.lower() for kind, value in names if kind == "DNS" and value and ":" not in value]
    return tuple(dict.fromkeys((*uris, *hosts)))
