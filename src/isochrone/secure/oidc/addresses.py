"""Which URLs of a provider are used: HTTPS, and plain HTTP on this machine alone. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from isochrone.secure.loopback import is_loopback


def is_allowed(url: str, *, allow_http: bool) -> bool:
    """Whether keys and tokens may go over ``url``. No user, query or fragment, and no character that hides another."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return False
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or "@" in parts.netloc or parts.query or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and (allow_http or is_loopback(host)))
