"""When the certificates of a PEM file expire. Pure.

Python's ssl module does not say it of a server's own certificate, and nothing else here needs a library for X.509. Only
the path to the end of the validity is read (RFC 5280, 4.1): Certificate, tbsCertificate, validity, notAfter.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime

_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
#: Tags of DER: a version number in front of the serial number, and the two forms of a time.
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
#: UTCTime has two digits of the year: from this one on they are of the 20th century.
_CENTURY_ENDS = 50


def first_expiry(pem: str) -> float | None:
    """Seconds since 1970 of the first certificate of a chain to expire; None: none can be read."""
    found = []
    for block in _BLOCK.findall(pem):
        try:
            found.append(_expiry(ssl.PEM_cert_to_DER_cert(block)))
        except (ValueError, IndexError):
            return None
    return min(found, default=None)


def _expiry(certificate: bytes) -> float:
    whole = _content(certificate, 0, _SEQUENCE)[0]
    signed = _content(whole, 0, _SEQUENCE)[0]
    start = _next(signed, 0) if signed[0] == _VERSION else 0
    # The serial number, the algorithm of the signature, and the issuer.
    for _ in range(3):
        start = _next(signed, start)
    validity = _content(signed, start, _SEQUENCE)[0]
    start = _next(validity, 0)
    tag = validity[start]
    text = _content(validity, start, tag)[0].decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if int(text[:2]) >= _CENTURY_ENDS else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"tag {tag:#x} in place of a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _content(data: bytes, start: int, tag: int) -> tuple[bytes, int]:
    """The content of an element, and where it ends."""
    if data[start] != tag:
        raise ValueError(f"tag {data[start]:#x} in place of {tag:#x}")
    length, start = data[start + 1], start + 2
    if length & 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(data[start : start + size], "big"), start + size
    if start + length > len(data):
        raise ValueError("an element is longer than what holds it")
    return data[start : start + length], start + length


def _next(data: bytes, start: int) -> int:
    """Where the element after the one at ``start`` begins."""
    return _content(data, start, data[start])[1]
