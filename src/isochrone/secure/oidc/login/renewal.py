"""The token of a control API: the kept one, renewed before it expires.

Blocking: for commands. A token goes to the control API that it was kept for, and to no other.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from isochrone.secure.loopback import is_loopback
from isochrone.secure.oidc.login.failures import LoginFailed, Refused
from isochrone.secure.oidc.login.flows import Login, log_in_with_secret, renew
from isochrone.secure.oidc.login.kept_logins import KeptLogin, KeptLogins
from isochrone.secure.oidc.settings import DEFAULT_SIGNATURES, Provider, checked

#: Seconds before the end at which a token is renewed: it must still be valid when the request arrives.
_MARGIN: Final = 30.0
#: Bytes of a secret's file.
_MOST_SECRET: Final = 4096


def origin_of(api: str) -> str:
    """The control API for which a login is kept; "" if a token must not be sent there."""
    try:
        parts = urlsplit(api)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        return ""
    written = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{written}:{port or (443 if parts.scheme == 'https' else 80)}"


def current_token(api: str, logins: KeptLogins | None = None) -> str:
    """The token for a control API; "": nobody has logged in there. Raises ``LoginFailed``."""
    origin, logins = origin_of(api), logins or KeptLogins()
    kept = logins.get(origin) if origin else None
    if kept is None:
        return ""
    if time.time() < kept.expires - _MARGIN:
        return kept.token
    with logins.locked():
        # Another command may have renewed it while this one waited.
        kept = logins.get(origin)
        if kept is None or time.time() < kept.expires - _MARGIN:
            return kept.token if kept is not None else ""
        return _renewed(api, origin, kept, logins)


def _renewed(api: str, origin: str, kept: KeptLogin, logins: KeptLogins) -> str:
    again = f"run 'isochrone login --api {api}' again"
    if not kept.refresh_token and not kept.secret_file:
        raise LoginFailed(f"the login at {kept.issuer} has expired; {again}")
    try:
        login = asyncio.run(_asked(kept))
    except Refused as error:
        raise LoginFailed(f"the login at {kept.issuer} has ended ({error}); {again}") from None
    except LoginFailed as error:
        if time.time() < kept.expires:
            return kept.token
        raise LoginFailed(f"the login at {kept.issuer} has expired and cannot be renewed now: {error}") from None
    renewed = kept_login(provider_of_login(kept), login, kept.secret_file)
    logins.put(origin, renewed)
    return renewed.token


async def _asked(kept: KeptLogin) -> Login:
    provider = provider_of_login(kept)
    if kept.secret_file:
        return await log_in_with_secret(provider, read_secret(Path(kept.secret_file)))
    return await renew(provider, kept.refresh_token, kept.subject)


def kept_login(provider: Provider, login: Login, secret_file: str = "") -> KeptLogin:
    return KeptLogin(
        provider.issuer,
        provider.client_id,
        provider.audience,
        login.claims.subject,
        login.claims.name,
        login.token,
        login.claims.expires,
        login.refresh_token,
        secret_file,
        provider.ca,
        provider.name_claim,
        provider.algorithms,
        provider.scopes,
        provider.login_parameters or {},
    )


def provider_of_login(kept: KeptLogin) -> Provider:
    found = Provider(
        kept.issuer,
        kept.audience,
        kept.client_id,
        kept.algorithms or DEFAULT_SIGNATURES,
        name_claim=kept.name_claim,
        ca=kept.ca,
        scopes=kept.scopes,
        login_parameters=kept.login_parameters,
    )
    return checked(found, "the kept login")


def read_secret(path: Path) -> str:
    """The secret of a client, from a file that only this user can read."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MOST_SECRET + 1).strip()
    except OSError as error:
        raise LoginFailed(f"{path}: {error.strerror}") from None
    if mode & 0o007:
        raise LoginFailed(f"{path}: every user can read the secret; run chmod 600 {path}")
    if not content or len(content) > _MOST_SECRET or not content.isascii() or b"\n" in content:
        raise LoginFailed(f"{path}: expected a client's secret, one line of at most {_MOST_SECRET} ASCII characters")
    return content.decode()
