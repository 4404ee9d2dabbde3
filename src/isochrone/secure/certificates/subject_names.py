"""The names that a certificate is valid for: DNS names, addresses, URIs. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from isochrone.errors import FlagError

#: A label of a DNS name (RFC 1123); the first may be a wildcard.
_DNS_NAME = re.compile(
    r"(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?)(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?)*"
)
_MAX_DNS_NAME = 253
#: A SPIFFE ID has a trust domain of these characters, and neither port, user, query nor fragment.
_TRUST_DOMAIN = re.compile(r"[a-z0-9._-]{1,255}")


@dataclass(frozen=True, slots=True)
class SubjectNames:
    """Subject alternative names (RFC 5280, 4.2.1.6), without duplicates, in the order given."""

    dns: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join((*self.uris, *self.dns, *self.addresses))


def read_names(hosts: Iterable[str], uris: Iterable[str]) -> SubjectNames:
    """Names from ``--host`` and ``--uri``. Raises ``FlagError``."""
    dns: dict[str, None] = {}
    addresses: dict[str, None] = {}
    for host in hosts:
        try:
            addresses[str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))] = None
        except ValueError:
            dns[_dns_name(host)] = None
    return SubjectNames(tuple(dns), tuple(addresses), tuple(dict.fromkeys(map(_uri, uris))))


def _dns_name(text: str) -> str:
    if len(text) > _MAX_DNS_NAME or not _DNS_NAME.fullmatch(text) or re.fullmatch(r"[0-9.]+", text):
        raise FlagError("--host", "a DNS name or an IP address, without a port", repr(text))
    return text.lower()


def _uri(text: str) -> str:
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if not text.isascii() or not text.isprintable() or " " in text or not parts.scheme or not parts.netloc:
        raise FlagError("--uri", "a URI such as spiffe://example.org/worker", repr(text))
    if parts.scheme == "spiffe" and (not _TRUST_DOMAIN.fullmatch(parts.netloc) or parts.query or parts.fragment):
        raise FlagError("--uri", "a SPIFFE ID: spiffe://, a trust domain in lower case, and a path", repr(text))
    return text
