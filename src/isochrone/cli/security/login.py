"""``isochrone login``: get a token for a control API from an OpenID provider, and keep it for other commands."""

from __future__ import annotations

import asyncio
import time
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from isochrone.cli.api_client import DEFAULT_API, ApiOption, JsonOption, api_url, failing_as, print_json
from isochrone.cli.api_tls import api_tls
from isochrone.errors import FlagError
from isochrone.secure.oidc.login.device_code import DeviceCode
from isochrone.secure.oidc.login.failures import LoginFailed
from isochrone.secure.oidc.login.flows import Login, log_in_with_browser, log_in_with_device, log_in_with_secret
from isochrone.secure.oidc.login.kept_logins import KeptLogins
from isochrone.secure.oidc.login.renewal import kept_login, origin_of, read_secret
from isochrone.secure.oidc.login.resource_metadata import PATH, read_metadata
from isochrone.secure.oidc.settings import Provider, checked

EPILOG = """
\b
Examples:
  isochrone login --api https://controller:8003
  isochrone login --device
  isochrone login --issuer https://login.example --client-id isochrone --audience fleet
  isochrone login --client-id robot-7 --client-secret-file secret
  isochrone login status

The control API names its provider; --issuer, --client-id and --audience replace what it says. Commands with the same
--api send the token and renew it. ISOCHRONE_API_TOKEN goes before it. Log in only at a control API that you trust: it
gets the token.
"""

STATUS_EPILOG = """
\b
Examples:
  isochrone login status
  isochrone login status --json

Shows no token. A login that can be renewed is, by the next command that needs it.
"""

#: Seconds; the metadata is a small file.
_PATIENCE = 10.0
_MOST_BYTES = 65_536

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True, epilog=EPILOG)
def login(
    context: typer.Context,
    api: ApiOption = DEFAULT_API,
    issuer: Annotated[str, typer.Option(metavar="URL", help="Issuer of the OpenID provider.")] = "",
    client_id: Annotated[str, typer.Option(help="The client that is registered at the provider.")] = "",
    audience: Annotated[str, typer.Option(help="Audience of the tokens that the fleet accepts.")] = "",
    scope: Annotated[list[str] | None, typer.Option(help="A scope to ask for. May be repeated.")] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A further parameter of the login, as resource. May be repeated."),
    ] = None,
    ca: Annotated[str, typer.Option(metavar="FILE", help="PEM file of the provider's certificate authorities.")] = "",
    device: Annotated[
        bool, typer.Option("--device", help="Show a code to enter on another machine; open no browser.")
    ] = False,
    client_secret_file: Annotated[
        Path | None, typer.Option(help="Log in as a service, with the client's secret in this file.")
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the login page in a browser.")
    ] = True,
) -> None:
    """Log in at the OpenID provider of a control API, with a browser, a code or a client's secret."""
    if context.invoked_subcommand is not None:
        return
    with failing_as("login"):
        url = _safe_url(api)
        given = {"issuer": issuer, "client_id": client_id, "audience": audience, "ca": ca and str(Path(ca).absolute())}
        provider = _provider(url, given, scope, parameter)
        if client_secret_file is not None:
            secret_file = client_secret_file.absolute()
            found = asyncio.run(log_in_with_secret(provider, read_secret(secret_file)))
            _keep(url, provider, found, str(secret_file))
        elif device:
            _keep(url, provider, asyncio.run(log_in_with_device(provider, _show_code)))
        else:
            show = _show_page if open_browser else _print_page
            _keep(url, provider, asyncio.run(log_in_with_browser(provider, show)))


@app.command(epilog=STATUS_EPILOG)
def status(as_json: JsonOption = False) -> None:
    """List the logins of this user; the exit status is 1 if there is none."""
    with failing_as("login status"):
        kept = KeptLogins()
        rows = [
            {
                "api": origin,
                "issuer": each.issuer,
                "name": each.name,
                "expires_in_seconds": round(each.expires - time.time()),
                "renewable": bool(each.refresh_token or each.secret_file),
            }
            for origin, each in sorted(kept.read().items())
        ]
    if as_json:
        print_json({"logins": rows})
    else:
        typer.echo("\n".join(_row(row) for row in rows) or f"no login is kept in {kept.path}")
    if not rows:
        raise typer.Exit(1)


def _row(row: dict[str, Any]) -> str:
    left = row["expires_in_seconds"]
    state = f"expires in {left} s" if left > 0 else "expired"
    return (
        f"{row['api']}  {row['name']} of {row['issuer']}, {state}{', renewed when needed' if row['renewable'] else ''}"
    )


def _safe_url(api: str) -> str:
    url = api_url(api)
    if not origin_of(url):
        expected = "https://HOST:PORT, or http:// on this machine, because the token is sent there"
        raise FlagError("--api", expected, repr(url))
    return url


def _provider(url: str, given: dict[str, str], scope: list[str] | None, parameter: list[str] | None) -> Provider:
    changes: dict[str, Any] = {name: value for name, value in given.items() if value}
    if scope:
        changes["scopes"] = tuple(scope)
    if parameter:
        changes["login_parameters"] = dict(_pair(each) for each in parameter)
    return merged(None if "issuer" in changes else _stated_by(url), changes)


def merged(stated: Provider | None, changes: dict[str, Any]) -> Provider:
    """The provider of the control API with what the user names; None: the user names all of it."""
    if stated is None:
        for name, flag in (("client_id", "--client-id"), ("audience", "--audience")):
            if name not in changes:
                raise FlagError(flag, "a name, because --issuer is given", "nothing")
    provider = replace(stated or Provider("", ""), **changes)
    if not provider.client_id:
        raise FlagError("--client-id", "a client, because the control API names none", "nothing")
    return checked(provider, "the login")


def _pair(given: str) -> tuple[str, str]:
    name, separator, value = given.partition("=")
    if not name or not separator:
        raise FlagError("--parameter", "NAME=VALUE", repr(given))
    return name, value


def _stated_by(url: str) -> Provider:
    """The provider that the control API names."""
    try:
        with httpx.Client(timeout=_PATIENCE, transport=api_tls(url).transport(), trust_env=False) as client:
            answer = client.get(f"{url}{PATH}", headers={"accept-encoding": "identity"})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise LoginFailed(f"no control API answers at {url} ({error}); name one with --api") from None
    if answer.status_code != 200 or len(answer.content) > _MOST_BYTES:
        raise LoginFailed(f"the control API at {url} names no OpenID provider; name one with --issuer")
    return read_metadata(answer.content, url)


def _keep(url: str, provider: Provider, found: Login, secret_file: str = "") -> None:
    kept = KeptLogins()
    with kept.locked():
        kept.put(origin_of(url), kept_login(provider, found, secret_file))
    typer.echo(f"logged in at {url} as {found.claims.name} ({provider.issuer})")


def _print_page(url: str) -> None:
    typer.echo(f"Open this page to log in:\n{url}")


def _show_page(url: str) -> None:
    _print_page(url)
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    # A browser of the terminal would take the terminal.
    if type(browser) is not webbrowser.GenericBrowser:
        browser.open(url)


def _show_code(code: DeviceCode) -> None:
    typer.echo(f"Open {code.url} on any machine and enter the code {code.user_code}")
    if code.complete_url:
        typer.echo(f"or open {code.complete_url}")
