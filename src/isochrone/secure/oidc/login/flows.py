"""The ways to a token: a browser with PKCE, a device code, a client's secret, a refresh token.

Each ends with a token that was verified as a server does it, so that a provider that is set up wrongly is found at the
login, and not by a rejected command.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, NamedTuple
from urllib.parse import quote_plus

from isochrone.errors import Unauthenticated
from isochrone.secure.oidc.claims import Claims
from isochrone.secure.oidc.discovery import Discovery, NotAProvider, discovery_url, read_discovery
from isochrone.secure.oidc.fetching import Answer, Fetcher, FetchFailed, fetcher
from isochrone.secure.oidc.key_set import UnusableKeys, read_key_set
from isochrone.secure.oidc.login.code_request import CodeRequest
from isochrone.secure.oidc.login.device_code import GRANT, DeviceCode, Polling, read_device_code
from isochrone.secure.oidc.login.failures import LoginFailed
from isochrone.secure.oidc.login.redirect import listening
from isochrone.secure.oidc.login.token_answers import Tokens, read_tokens
from isochrone.secure.oidc.settings import Provider
from isochrone.secure.oidc.verifier import Verifier

#: Seconds in which somebody enters a password and a second factor.
_BROWSER_SECONDS: Final = 300.0


class Login(NamedTuple):
    """``token`` is what a control API accepts; ``refresh_token`` "": it cannot be renewed."""

    token: str
    claims: Claims
    refresh_token: str


async def log_in_with_browser(provider: Provider, show: Callable[[str], None]) -> Login:
    """``show`` gets the URL of the login page."""
    async with _client(provider) as client, listening() as redirect:
        request = CodeRequest.new(provider, redirect.uri)
        redirect.is_answer = request.is_answer
        show(request.url(client.endpoint("authorization_endpoint")))
        try:
            answer = await asyncio.wait_for(redirect.answer(), _BROWSER_SECONDS)
        except TimeoutError:
            raise LoginFailed("no browser has logged in within five minutes; try --device") from None
        return await _exchanged(client, request, answer)


async def login_endpoint(provider: Provider) -> str:
    """The provider's login page, for ``CodeRequest.url``."""
    async with _client(provider) as client:
        return client.endpoint("authorization_endpoint")


async def log_in_with_answer(request: CodeRequest, answer: Mapping[str, str]) -> Login:
    """``answer``: the parameters with which the provider sent the browser back; the caller has compared their state."""
    async with _client(request.provider) as client:
        return await _exchanged(client, request, answer)


async def _exchanged(client: _Client, request: CodeRequest, answer: Mapping[str, str]) -> Login:
    code = request.code_of(answer, client.found)
    tokens = read_tokens(await client.ask(request.exchange(code)))
    return await client.checked(tokens, nonce=request.nonce)


async def log_in_with_device(provider: Provider, show: Callable[[DeviceCode], None]) -> Login:
    async with _client(provider) as client:
        url = client.endpoint("device_authorization_endpoint")
        form = {**(provider.login_parameters or {}), "scope": " ".join(provider.scopes)}
        code = read_device_code(await client.ask(form, url))
        show(code)
        return await client.checked(read_tokens(await _confirmed(client, code)))


async def _confirmed(client: _Client, code: DeviceCode) -> Answer:
    polling = Polling(code, time.monotonic())
    form = {**(client.provider.login_parameters or {}), "grant_type": GRANT, "device_code": code.device_code}
    while True:
        polling.check_time(time.monotonic())
        await asyncio.sleep(polling.interval)
        try:
            answer = await client.ask(form)
            if polling.is_final(answer):
                return answer
        except FetchFailed:
            polling.failed()


async def log_in_with_secret(provider: Provider, secret: str) -> Login:
    """A service account (RFC 6749, section 4.4)."""
    async with _client(provider, secret) as client:
        # Scopes of people: there is no ID token, and the secret is what renews the token.
        scopes = [scope for scope in provider.scopes if scope not in ("openid", "offline_access")]
        form = {**(provider.login_parameters or {}), "grant_type": "client_credentials"}
        if scopes:
            form["scope"] = " ".join(scopes)
        return await client.checked(read_tokens(await client.ask(form))._replace(refresh_token=""))


async def renew(provider: Provider, refresh_token: str, subject: str) -> Login:
    async with _client(provider) as client:
        form = {**(provider.login_parameters or {}), "grant_type": "refresh_token", "refresh_token": refresh_token}
        tokens = read_tokens(await client.ask(form))
        # A provider that does not rotate refresh tokens sends none.
        login = await client.checked(tokens._replace(refresh_token=tokens.refresh_token or refresh_token))
        if login.claims.subject != subject:
            raise LoginFailed("the provider renewed the login as another subject")
        return login


async def revoke(provider: Provider, refresh_token: str) -> None:
    """End a login at the provider (RFC 7009), if it has an endpoint for that."""
    async with _client(provider) as client:
        if client.found.revocation_endpoint:
            form = {"token": refresh_token, "token_type_hint": "refresh_token"}
            await client.ask(form, client.found.revocation_endpoint)


class _Client:
    """One client of a provider, whose endpoints are known."""

    def __init__(self, provider: Provider, found: Discovery, http: Fetcher, secret: str) -> None:
        self.provider = provider
        self.found = found
        self._http = http
        self._secret = secret

    def endpoint(self, name: str) -> str:
        url: str = getattr(self.found, name)
        if not url:
            raise LoginFailed(f"{self.provider.issuer} has no {name}: it does not offer this way to log in")
        return url

    async def ask(self, form: dict[str, str], url: str = "") -> Answer:
        url = url or self.endpoint("token_endpoint")
        name, methods = self.provider.client_id, self.found.client_methods
        if not self._secret:
            return await self._http.post(url, {**form, "client_id": name})
        if "client_secret_basic" in methods or "client_secret_post" not in methods:
            # Encoded as RFC 6749, section 2.3.1 asks for.
            return await self._http.post(url, form, (quote_plus(name), quote_plus(self._secret)))
        return await self._http.post(url, {**form, "client_id": name, "client_secret": self._secret})

    async def checked(self, tokens: Tokens, nonce: str | None = None) -> Login:
        """The token that a control API accepts: the one whose audience it is."""
        keys = read_key_set(await self._http.get(self.found.jwks_uri), time.time())
        client = Verifier(replace(self.provider, audience=self.provider.client_id))
        fleet = Verifier(self.provider)
        client.keys = fleet.keys = keys
        try:
            if tokens.id_token:
                client.verify_login(tokens.id_token, nonce, time.time())
            elif nonce is not None and "openid" in self.provider.scopes:
                raise LoginFailed("the provider issued no ID token; the client must be one of OpenID Connect")
            is_own = self.provider.audience == self.provider.client_id
            token = tokens.id_token if is_own and tokens.id_token else tokens.access_token
            return Login(token, fleet.verify(token, time.time()), tokens.refresh_token)
        except Unauthenticated as error:
            raise LoginFailed(f"the provider issued a token that the fleet would reject: {error}") from None


@asynccontextmanager
async def _client(provider: Provider, secret: str = "") -> AsyncIterator[_Client]:
    try:
        async with fetcher(provider) as http:
            found = read_discovery(provider, await http.get(discovery_url(provider)))
            yield _Client(provider, found, http, secret)
    except (FetchFailed, NotAProvider, UnusableKeys) as error:
        raise LoginFailed(str(error)) from None
