"""Tokens and logins of a real OpenID provider, oidc-provider: every way to a token, renewal, rotation, outage."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from openid_provider import CLIENT, SECRET, OpenIdProvider, browser, fill_in, log_in

from bench.worker.peers.process import PeerUnavailable
from isochrone.cli.api_client import ApiClient, ApiFailed
from isochrone.errors import Unauthenticated
from isochrone.secure.oidc.claims import Claims
from isochrone.secure.oidc.key_set import UnknownKey
from isochrone.secure.oidc.keys import KeySource
from isochrone.secure.oidc.login.device_code import DeviceCode
from isochrone.secure.oidc.login.failures import LoginFailed, Refused
from isochrone.secure.oidc.login.flows import (
    Login,
    log_in_with_browser,
    log_in_with_device,
    log_in_with_secret,
    renew,
    revoke,
)
from isochrone.secure.oidc.login.kept_logins import KeptLogins
from isochrone.secure.oidc.login.resource_metadata import PATH, write_metadata
from isochrone.secure.oidc.settings import Provider

pytestmark = pytest.mark.peers

AUDIENCE = "https://fleet.example"
SCOPES = ("openid", "offline_access", "infer")


@pytest.fixture(scope="module")
def openid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenIdProvider]:
    try:
        provider = OpenIdProvider(tmp_path_factory.mktemp("openid"))
    except PeerUnavailable as error:
        pytest.skip(str(error))
    with provider:
        yield provider


@pytest.fixture(autouse=True)
def _own_logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("ISOCHRONE_API_TOKEN", raising=False)


def settings(issuer: str, client: str = CLIENT, **others: Any) -> Provider:
    return Provider(issuer, AUDIENCE, client, scopes=SCOPES, login_parameters={"resource": AUDIENCE}, **others)


def browsed(provider: Provider, name: str = "ada") -> Login:
    """A login whose user is scripted, in a thread as a browser is beside the command."""
    pages: list[threading.Thread] = []

    def show(url: str) -> None:
        pages.append(threading.Thread(target=log_in, args=(url, name)))
        pages[0].start()

    try:
        return asyncio.run(log_in_with_browser(provider, show))
    finally:
        pages[0].join()


def service(openid: OpenIdProvider, method: str = "client_secret_basic") -> Login:
    return asyncio.run(log_in_with_secret(settings(openid.issuer, f"robot_{method}"), SECRET))


def verified(openid: OpenIdProvider, token: str) -> Claims:
    """As a server that has just started does it."""

    async def whole() -> Claims:
        source = KeySource(settings(openid.issuer))
        await source.start()
        try:
            return source.verifier.verify(token, time.time())
        finally:
            await source.stop()

    return asyncio.run(whole())


def test_a_person_with_a_browser(openid: OpenIdProvider) -> None:
    login = browsed(settings(openid.issuer))
    found = verified(openid, login.token)
    assert found == login.claims
    assert (found.issuer, found.subject, found.groups) == (openid.issuer, "ada", ("operators",))
    assert login.refresh_token


def test_an_id_token_is_sent_where_the_audience_is_the_client(openid: OpenIdProvider) -> None:
    provider = Provider(openid.issuer, CLIENT, CLIENT)
    login = browsed(provider)
    assert login.claims.subject == "ada"
    # For a fleet with an audience of its own, it is no credential.
    with pytest.raises(Unauthenticated, match="aud does not contain"):
        verified(openid, login.token)


def test_a_person_with_a_device_code(openid: OpenIdProvider) -> None:
    shown: list[DeviceCode] = []

    def confirm(code: DeviceCode) -> None:
        shown.append(code)
        with browser() as client:
            page = fill_in(client, code.complete_url, {"login": "grace", "password": "of a test"})
        assert "Success" in page.text

    login = asyncio.run(log_in_with_device(settings(openid.issuer), confirm))
    assert verified(openid, login.token).subject == "grace"
    assert shown[0].user_code in shown[0].complete_url
    assert login.refresh_token


def test_a_device_code_that_the_user_refuses(openid: OpenIdProvider) -> None:
    def refuse(code: DeviceCode) -> None:
        with browser() as client:
            form = client.get(code.url).text
            xsrf = form.split('name="xsrf" value="')[1].split('"')[0]
            client.post(code.url, data={"xsrf": xsrf, "user_code": code.user_code, "abort": "yes"})

    with pytest.raises(LoginFailed, match="refused: access_denied"):
        asyncio.run(log_in_with_device(settings(openid.issuer), refuse))


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
def test_a_service_account(openid: OpenIdProvider, method: str) -> None:
    login = service(openid, method)
    assert verified(openid, login.token).subject == f"robot_{method}"
    assert login.refresh_token == ""


def test_a_wrong_secret(openid: OpenIdProvider) -> None:
    with pytest.raises(Refused, match="invalid_client") as refused:
        asyncio.run(log_in_with_secret(settings(openid.issuer, "robot_client_secret_basic"), "wrong-secret"))
    assert "wrong-secret" not in str(refused.value)


def test_a_refresh_token_renews_once_and_reuse_ends_the_login(openid: OpenIdProvider) -> None:
    provider = settings(openid.issuer)
    first = browsed(provider)
    second = asyncio.run(renew(provider, first.refresh_token, "ada"))
    assert second.refresh_token != first.refresh_token
    assert verified(openid, second.token).subject == "ada"
    with pytest.raises(Refused, match="invalid_grant"):
        asyncio.run(renew(provider, first.refresh_token, "ada"))


def test_a_renewed_login_is_of_the_same_subject(openid: OpenIdProvider) -> None:
    provider = settings(openid.issuer)
    first = browsed(provider)
    with pytest.raises(LoginFailed, match="another subject"):
        asyncio.run(renew(provider, first.refresh_token, "grace"))


def test_a_revoked_login_is_not_renewed(openid: OpenIdProvider) -> None:
    provider = settings(openid.issuer)
    login = browsed(provider)
    asyncio.run(revoke(provider, login.refresh_token))
    with pytest.raises(Refused):
        asyncio.run(renew(provider, login.refresh_token, "ada"))


def test_a_login_for_another_audience_fails_at_once(openid: OpenIdProvider) -> None:
    provider = Provider(
        openid.issuer, "https://other.example", CLIENT, scopes=SCOPES, login_parameters={"resource": AUDIENCE}
    )
    with pytest.raises(LoginFailed, match=r"the fleet would reject: .* aud does not contain"):
        browsed(provider)


def test_keys_are_rotated_while_a_server_verifies(openid: OpenIdProvider) -> None:
    """As a provider does it: publish the new key, sign with it, withdraw the old one."""

    class Clock:
        now = 1000.0

        def __call__(self) -> float:
            return self.now

    async def whole() -> None:
        clock = Clock()
        source = KeySource(settings(openid.issuer), clock=clock)
        await source.start()

        def verify(token: str) -> Claims:
            return source.verifier.verify(token, time.time())

        async def issued() -> str:
            return (await asyncio.to_thread(service, openid)).token

        try:
            old = await issued()
            openid.rotate("ec-2", "rsa-1")
            new = await issued()
            assert verify(old)
            with pytest.raises(UnknownKey):
                verify(new)
            assert await source.refresh()
            assert verify(new)
            assert verify(old)
            openid.rotate("ed-3", "ec-2")
            third = await issued()
            with pytest.raises(UnknownKey):
                verify(third)
            # Within ten seconds of the fetch that one such token has caused, others fetch nothing.
            assert not await source.refresh()
            clock.now += 10
            assert await source.refresh()
            assert verify(third)
            assert verify(new)
            with pytest.raises(UnknownKey):
                verify(old)
        finally:
            await source.stop()
            openid.rotate("rsa-1")

    asyncio.run(whole())


def test_a_provider_that_goes_away(tmp_path: Path) -> None:
    async def whole() -> None:
        cache = tmp_path / "keys.json"
        with OpenIdProvider(tmp_path) as openid:
            token = (await asyncio.to_thread(service, openid)).token
            source = KeySource(settings(openid.issuer), cache)
            await source.start()
        try:
            assert source.verifier.verify(token, time.time())
        finally:
            await source.stop()
        again = KeySource(settings(openid.issuer), cache)
        await again.start()
        try:
            assert again.verifier.verify(token, time.time())
        finally:
            await again.stop()

    asyncio.run(whole())


def test_a_provider_over_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    with OpenIdProvider(tmp_path, certificate) as openid:
        trusted = settings(openid.issuer, "robot_client_secret_basic", ca=str(certificate[0]))
        assert asyncio.run(log_in_with_secret(trusted, SECRET)).claims.issuer == openid.issuer
        # Its certificate is of no authority of the system.
        with pytest.raises(LoginFailed, match="CERTIFICATE_VERIFY_FAILED"):
            service(openid)


# The command line


class ControlApi:
    """Names the provider, and records with which token it is asked."""

    def __init__(self, provider: Provider) -> None:
        self.tokens: queue.Queue[str] = queue.Queue()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == PATH:
                    body = json.dumps(write_metadata(provider, api.url)).encode()
                else:
                    api.tokens.put(self.headers.get("authorization", ""))
                    body = b"{}"
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> ControlApi:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def asked(self) -> str:
        """The token of a command."""
        with ApiClient(self.url) as client:
            client.get("/v1/status", dict)
        return self.tokens.get(timeout=10).removeprefix("Bearer ")


def isochrone(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "isochrone", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(command: subprocess.Popen[str], status: int = 0) -> str:
    output, errors = command.communicate(timeout=60)
    assert command.returncode == status, output + errors
    return output + errors


def test_commands_log_in_send_the_token_and_log_out(openid: OpenIdProvider) -> None:
    with ControlApi(settings(openid.issuer)) as api:
        assert api.asked() == ""
        login = isochrone("login", "--api", api.url, "--no-browser")
        assert login.stdout is not None
        assert login.stdout.readline() == "Open this page to log in:\n"
        page = log_in(login.stdout.readline().strip())
        assert "The answer has arrived" in page.text
        assert f"logged in at {api.url} as ada ({openid.issuer})" in ended(login)

        path = KeptLogins().path
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        token = api.asked()
        assert verified(openid, token).subject == "ada"
        # A token of the environment goes before it.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ISOCHRONE_API_TOKEN", "given")
            assert api.asked() == "given"
        with ControlApi(settings(openid.issuer)) as other:
            assert other.asked() == ""

        assert f"{api.url}  ada of {openid.issuer}, expires in " in ended(isochrone("login", "status"))
        (listed,) = json.loads(ended(isochrone("login", "status", "--json")))["logins"]
        assert (listed["name"], listed["renewable"]) == ("ada", True)
        kept = KeptLogins().get(api.url)
        assert kept is not None
        assert f"logged out at {api.url}\n" in ended(isochrone("logout", "--api", api.url))
        assert api.asked() == ""
        with pytest.raises(Refused):
            asyncio.run(renew(settings(openid.issuer), kept.refresh_token, "ada"))
        assert "no login is kept" in ended(isochrone("login", "status"), 1)


def test_a_service_logs_in_and_its_token_is_renewed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    with OpenIdProvider(tmp_path, token_seconds=32) as openid, ControlApi(settings(openid.issuer)) as api:
        arguments = ("--api", api.url, "--client-id", "robot_client_secret_post", "--client-secret-file", str(secret))
        assert "every user can read the secret" in ended(isochrone("login", *arguments), 1)
        secret.chmod(0o600)
        ended(isochrone("login", *arguments))
        first = api.asked()
        ends = time.monotonic() + 60
        while (renewed := api.asked()) == first:
            assert time.monotonic() < ends
            time.sleep(0.1)
        assert verified(openid, renewed).subject == "robot_client_secret_post"
        assert SECRET not in KeptLogins().path.read_text()


def test_commands_side_by_side_use_a_refresh_token_once(tmp_path: Path) -> None:
    """The second use of a rotated token would end the login: oidc-provider takes it for theft."""
    with OpenIdProvider(tmp_path, token_seconds=5) as openid, ControlApi(settings(openid.issuer)) as api:
        login = isochrone("login", "--api", api.url, "--no-browser")
        assert login.stdout is not None
        login.stdout.readline()
        log_in(login.stdout.readline().strip())
        ended(login)
        first = KeptLogins().get(api.url)
        assert first is not None
        # Of five seconds' lifetime, a token is due for renewal at once, in every command.
        commands = [isochrone("status", "--api", api.url) for _ in range(4)]
        for command in commands:
            assert "the login at" not in "".join(command.communicate(timeout=60))
        last = KeptLogins().get(api.url)
        assert last is not None
        assert last.refresh_token != first.refresh_token
        assert api.tokens.qsize() >= 4
        assert api.tokens.get().startswith("Bearer ey")


def test_a_login_that_is_interrupted_leaves_nothing(openid: OpenIdProvider) -> None:
    with ControlApi(settings(openid.issuer)) as api:
        login = isochrone("login", "--api", api.url, "--no-browser")
        assert login.stdout is not None
        login.stdout.readline()
        login.stdout.readline()
        os.kill(login.pid, signal.SIGINT)
        assert "Traceback" not in ended(login, 130)
        assert not KeptLogins().path.exists()


def test_a_login_that_cannot_be_renewed_says_what_to_do(tmp_path: Path) -> None:
    with OpenIdProvider(tmp_path, token_seconds=5) as openid, ControlApi(settings(openid.issuer)) as api:
        provider = settings(openid.issuer)
        login = isochrone("login", "--api", api.url, "--no-browser")
        assert login.stdout is not None
        login.stdout.readline()
        log_in(login.stdout.readline().strip())
        ended(login)
        kept = KeptLogins().get(api.url)
        assert kept is not None
        asyncio.run(revoke(provider, kept.refresh_token))
        with pytest.raises(ApiFailed, match=f"has ended .*; run 'isochrone login --api {api.url}' again"):
            api.asked()
