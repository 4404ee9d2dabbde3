"""The login page: a form for each provider, and one for an API token. No script, and nothing of another site. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from isochrone.console.places import LOGIN, LOGIN_PROVIDER, LOGIN_STYLE, MOUNT, THEME

#: Without scripts, frames and other sites.
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # A form that is sent without its origin would be refused.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}


def login_page(
    providers: Iterable[str], next_page: str, *, problem: str = "", is_encrypted: bool = True, notice: str = ""
) -> str:
    """``problem``: why the last attempt failed. ``next_page``: of this console, which ``local.next_page`` decides."""
    hidden = f'<input type="hidden" name="next" value="{escape(next_page)}">'
    by_provider = "".join(
        f'<form method="post" action="{LOGIN_PROVIDER}">{hidden}'
        f'<button class="main" name="provider" value="{escape(name)}">Log in with {escape(name)}</button></form>'
        for name in providers
    )
    said = f'<p class="problem" role="alert">{escape(problem)}</p>' if problem else ""
    said += f'<p role="status">{escape(notice)}</p>' if notice else ""
    if not is_encrypted:
        said += '<p class="problem">This connection is not encrypted: others on the network can read what you send.</p>'
    first = " autofocus" if not by_provider else ""
    token = (
        f'<form method="post" action="{LOGIN}">{hidden}<label for="token">API token</label>'
        '<input id="token" name="token" type="password" required maxlength="8200" autocomplete="off" '
        f'spellcheck="false" autocapitalize="off"{first}><button>Log in with the token</button></form>'
    )
    between = '<p class="or">or</p>' if by_provider else ""
    return _document("Log in", f"<h1>Isochrone</h1>{said}{by_provider}{between}{token}")


def leaving_page(url: str, name: str) -> str:
    """Sends the browser to the provider. Not by a redirect: browsers would hold the form to this site."""
    shown = escape(url)
    text = f'<h1>Isochrone</h1><p>Going to {escape(name)}. <a href="{shown}">Go on</a> if nothing happens.</p>'
    return _document("Log in", text, f'<meta http-equiv="refresh" content="0; url={shown}">')


def failed_page(problem: str) -> str:
    again = f'<p><a href="{MOUNT}/">Log in again</a></p>'
    return _document("Log in", f'<h1>Isochrone</h1><p class="problem" role="alert">{escape(problem)}</p>{again}')


def _document(title: str, content: str, more_head: str = "") -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title} – Isochrone</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{more_head}'
        f'<link rel="stylesheet" href="{THEME}"><link rel="stylesheet" href="{LOGIN_STYLE}"></head>'
        f"<body><main>{content}</main></body></html>"
    )
