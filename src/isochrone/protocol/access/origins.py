"""Cross-origin requests: which pages may use a server from a browser.

The servers have no users to tell apart, and a page must not use the network position of the person who looks at it. A
browser names the page's site in ``Origin`` with every request that can change something, whatever its content type;
other clients send none. ``applications.application.SameOrigin`` applies these rules on every port.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from isochrone.errors import FlagError, PermissionDenied

_PORTS = {"http": 80, "https": 443}


def is_allowed(origin: bytes, host: bytes, allowed: Collection[str]) -> bool:
    """Whether ``Origin`` is allowed, or is the site in ``Host`` as an address or a short name."""
    text = origin.decode("latin-1").lower()
    if text in allowed:
        return True
    try:
        page = urlsplit(text)
        server = urlsplit(f"{page.scheme}://{host.decode('latin-1').lower()}")
        default = _PORTS.get(page.scheme, 0)
        same = (page.hostname, page.port or default) == (server.hostname, server.port or default)
        return same and page.hostname is not None and _cannot_be_rebound(page.hostname)
    except ValueError:
        return False


def _cannot_be_rebound(host: str) -> bool:
    """Whether DNS rebinding cannot make this host name resolve to this machine.

    A name with a dot may belong to another site. An address, and a name without a dot (localhost, a machine's short
    name), cannot.
    """
    if "." not in host:
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def refused(origin: bytes) -> PermissionDenied:
    shown = origin[:200].decode("latin-1")
    return PermissionDenied(
        f"a page of {shown!r} may not use this server from a browser; to allow it, start the server with "
        f"--allow-origin {shown}"
    )


def read_origins(given: Collection[str]) -> tuple[str, ...]:
    """The values of ``--allow-origin``, as browsers write them."""
    found = []
    for text in given:
        try:
            split = urlsplit(text.lower())
            port = split.port
        except ValueError:
            split, port = urlsplit(""), None
        if split.scheme not in _PORTS or not split.hostname or split.path not in ("", "/") or split.query:
            raise FlagError("--allow-origin", "scheme://host or scheme://host:port", repr(text))
        # Browsers omit the scheme's default port.
        named = "" if port in (None, _PORTS[split.scheme]) else f":{port}"
        host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
        found.append(f"{split.scheme}://{host}{named}")
    return tuple(found)
