"""What belongs to this site: pages that a login may lead to, origins, and the names of cookies. Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response

from isochrone.console.places import MOUNT, PAGE_PATHS

_PORTS: Final = {"http": 80, "https": 443}
#: Browsers take a cookie of this name only over HTTPS, for this host alone and for all its paths.
_HOST_PREFIX: Final = "__Host-"
SESSION: Final = "isochrone"
LOGIN: Final = "isochrone-login"
_LONGEST: Final = 500


def next_page(given: str) -> str:
    """The page of the console that ``given`` names; the first one if it names none."""
    first = f"{MOUNT}/"
    if len(given) > _LONGEST or not given.isascii() or not given.isprintable() or "\\" in given:
        return first
    path, question, query = given.partition("?")
    if not path.startswith(first) or path.removeprefix(MOUNT) not in PAGE_PATHS or "#" in query:
        return first
    return f"{path}{question}{query}"


def own_origin(headers: Headers) -> str:
    """The ``Origin`` of a request if it is this site's, as a browser states it with every POST and WebSocket; "": it is
    not. The scheme is the browser's: behind a proxy with TLS, the controller cannot know it."""
    origin = headers.get("origin", "")
    try:
        page, server = urlsplit(origin), urlsplit(f"//{headers.get('host', '')}")
        default = _PORTS.get(page.scheme)
        same = (page.hostname, page.port or default) == (server.hostname, server.port or default)
    except ValueError:
        return ""
    if not same or default is None or not page.hostname or "@" in server.netloc:
        return ""
    # Not as it was sent: a path or a user has no place in an origin.
    return f"{page.scheme}://{server.netloc}"


def may_use_cookie(headers: Headers, method: str) -> bool:
    """Whether a page of this site, or the person at the browser, made a request with a cookie.

    Other ports of this host are the same site to ``SameSite``. Browsers tell them apart in ``Sec-Fetch-Site``, and over
    plain HTTP only in ``Origin``.
    """
    if "origin" in headers and not own_origin(headers):
        return False
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return True
    return method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"


def cookie_of(headers: Headers, name: str, *, is_secure: bool) -> str:
    return cookie_parser(headers.get("cookie", "")).get(_cookie_name(headers, name, is_secure), "")


def set_cookie(
    response: Response, headers: Headers, name: str, value: str, *, is_secure: bool, seconds: int | None = None
) -> None:
    """Not readable by scripts. Without ``seconds``, the browser forgets it at its end.

    ``Lax``: the provider's answer is a link from another site.
    """
    response.set_cookie(
        _cookie_name(headers, name, is_secure),
        value,
        max_age=seconds,
        path="/",
        secure=is_secure,
        httponly=True,
        samesite="lax",
    )


def _cookie_name(headers: Headers, name: str, is_secure: bool) -> str:
    """With the port: cookies are of a host, and controllers on several ports of it must not end each other's."""
    try:
        port = urlsplit(f"//{headers.get('host', '')}").port
    except ValueError:
        port = None
    return f"{_HOST_PREFIX if is_secure else ''}{name}{f'-{port}' if port else ''}"
