"""The end of a certificate's validity: as openssl says it, for both forms of a time, and for anything else none."""

from __future__ import annotations

import base64
import ssl
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from isochrone.wire.tls.certificates import first_expiry
from isochrone.wire.tls.contexts import server_context

CERTIFICATES = Path(__file__).parents[1] / "certificates"
PEM = (CERTIFICATES / "localhost.pem").read_text()


def _element(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _certificate(not_after: bytes, tag: int, *, version: bool = True) -> str:
    """As much of a certificate as comes before and after the validity."""
    validity = _element(0x30, _element(0x17, b"200101000000Z") + _element(tag, not_after))
    first = _element(0xA0, _element(0x02, b"\x02")) if version else b""
    issuer = _element(0x30, b"\x00" * 200)
    signed = first + _element(0x02, b"\x01" * 20) + _element(0x30, b"") + issuer + validity + _element(0x30, b"")
    der = _element(0x30, _element(0x30, signed) + _element(0x30, b"") + _element(0x03, b"\x00"))
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"


def test_a_real_certificate_is_read_as_ssl_reads_it() -> None:
    # The only way in which the ssl module tells it: of a certificate that is an authority.
    decoded = ssl._ssl._test_decode_cert(str(CERTIFICATES / "localhost.pem"))  # type: ignore[attr-defined]
    assert first_expiry(PEM) == ssl.cert_time_to_seconds(decoded["notAfter"])
    context = server_context(CERTIFICATES / "localhost.pem", CERTIFICATES / "localhost.key")
    assert context.expires == first_expiry(PEM)


@given(st.datetimes(datetime(1950, 1, 1), datetime(9999, 12, 31)), st.booleans())
def test_both_forms_of_a_time(moment: datetime, version: bool) -> None:
    moment = moment.replace(microsecond=0)
    expected = moment.replace(tzinfo=UTC).timestamp()
    long = f"{moment:%Y%m%d%H%M%S}".rjust(14, "0").encode() + b"Z"
    assert first_expiry(_certificate(long, 0x18, version=version)) == expected
    if moment.year < 2050:
        assert first_expiry(_certificate(long[2:], 0x17, version=version)) == expected


def test_of_a_chain_the_first_to_expire_counts() -> None:
    chain = _certificate(b"300101000000Z", 0x17) + _certificate(b"290101000000Z", 0x17)
    assert first_expiry(chain) == datetime(2029, 1, 1, tzinfo=UTC).timestamp()


@given(st.binary(max_size=200))
def test_anything_else_has_none(content: bytes) -> None:
    body = base64.encodebytes(content).decode()
    block = f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"
    assert first_expiry(block) is None or content[:1] == b"\x30"
    assert first_expiry("no certificate") is None


def test_a_broken_block_makes_the_whole_unknown() -> None:
    assert first_expiry(PEM + "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n") is None
