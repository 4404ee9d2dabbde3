"""``isochrone logout``: end a login at its provider, and remove its tokens here."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from isochrone.cli.api_client import DEFAULT_API, ApiOption, api_url, failing_as
from isochrone.secure.oidc.login.failures import LoginFailed
from isochrone.secure.oidc.login.flows import revoke
from isochrone.secure.oidc.login.kept_logins import KeptLogin, KeptLogins
from isochrone.secure.oidc.login.renewal import origin_of, provider_of_login

EPILOG = """
\b
Examples:
  isochrone logout
  isochrone logout --api https://controller:8003
  isochrone logout --all

The refresh token is revoked at the provider. A token that was already sent is accepted until it expires.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(epilog=EPILOG)
def logout(
    api: ApiOption = DEFAULT_API,
    every: Annotated[bool, typer.Option("--all", help="End all logins of this user.")] = False,
) -> None:
    """End the login at a control API, and remove its tokens from this machine."""
    with failing_as("logout"):
        kept = KeptLogins()
        with kept.locked():
            logins = kept.read()
            origin = origin_of(api_url(api))
            chosen = {name: each for name, each in logins.items() if every or name == origin}
            for name in chosen:
                kept.put(name, None)
        for name, each in chosen.items():
            typer.echo(f"logged out at {name}{_revoked(each)}")
        if not chosen:
            typer.echo("no login to end")


def _revoked(login: KeptLogin) -> str:
    if not login.refresh_token:
        return ""
    try:
        asyncio.run(revoke(provider_of_login(login), login.refresh_token))
    except LoginFailed as error:
        return f"; the provider has not revoked the refresh token: {error}"
    return ""
