"""The command line's client of the control API: typed, blocking, one request at a time.

Raises ``ApiFailed``, and nothing else, for any failure of a controller or the network.
"""

from __future__ import annotations

import getpass
import json
import os
import select
import socket
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec
import typer

from isochrone.cli.api_tls import CA, api_tls
from isochrone.cli.last_fleet import last_fleet
from isochrone.client.scheme_hints import hint_of_plain, hint_of_tls
from isochrone.control.api.messages import in_full
from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.secure import api_token
from isochrone.secure.oidc.login.failures import LoginFailed
from isochrone.secure.oidc.login.kept_logins import has_logins

Answer = TypeVar("Answer")

#: No ``--api``: use the fleet that was started last on this machine.
DEFAULT_API = ""
#: Without such a fleet: the default address of a controller.
_USUAL_API = "http://127.0.0.1:8003"
ApiOption = Annotated[
    str,
    typer.Option(
        "--api",
        metavar="URL",
        envvar="ISOCHRONE_API",
        help="Address of a controller.",
        show_default=f"the fleet last started here with 'isochrone up', else {_USUAL_API}",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

#: Timeout in seconds. A controller may wait for a slow disk; nothing else takes long.
_PATIENCE = 30.0
#: Seconds without a byte on a stream; the controller sends a comment every ten.
_SILENCE = 30.0


class ApiFailed(Exception):
    """A failed call; the message says what happened and what to do. ``status`` 0: no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ApiClient:
    """``with ApiClient(url) as client``."""

    def __init__(self, url: str) -> None:
        """``url`` "": the fleet that was started last on this machine."""
        last = last_fleet() if not url else None
        #: Names the expected fleet in errors.
        self._whose = f" of fleet {last.name}, the last one started here," if last is not None and last.api else ""
        self.url = api_url(url)
        #: For other processes of the fleet, too.
        self.token = CallerToken(self.url)
        try:
            # No proxies from the environment: controllers are on this machine or in this network.
            self._client = httpx.Client(
                base_url=self.url,
                timeout=_PATIENCE,
                trust_env=False,
                transport=api_tls(self.url).transport(),
                headers=_headers(),
                auth=self.token,
            )
        except (httpx.InvalidURL, ValueError):
            raise ApiFailed(f"--api: expected http://HOST:PORT, given '{url}'") from None

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def get(self, path: str, kind: type[Answer], **query: float | list[str]) -> Answer:
        return self._ask("GET", path, kind, query=query)

    def send(self, method: str, path: str, kind: type[Answer], body: Any = None, **query: int) -> Answer:
        return self._ask(method, path, kind, body, query)

    def follow(self, path: str, kind: type[Answer], **query: int) -> Iterator[Answer]:
        """The records of a stream of server-sent events, until it ends."""
        try:
            timeout = httpx.Timeout(_PATIENCE, read=_SILENCE)
            with self._client.stream("GET", path, params=query, timeout=timeout) as response:
                if response.status_code != 200:
                    response.read()
                    raise self._refusal(response)
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        yield self._decoded(line[6:].encode(), kind, path)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _ask(self, method: str, path: str, kind: type[Answer], body: Any = None, query: Any = None) -> Answer:
        content = None if body is None else msgspec.json.encode(body)
        headers = {"content-type": "application/json"} if content is not None else {}
        try:
            response = self._client.request(method, path, content=content, headers=headers, params=query or {})
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from None
        if response.status_code >= 300:
            raise self._refusal(response)
        return self._decoded(response.content, kind, path)

    def _decoded(self, content: bytes, kind: type[Answer], path: str) -> Answer:
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiFailed(f"{self.url}{path} did not answer as a controller does ({error}); is it one?") from None

    def _refusal(self, response: httpx.Response) -> ApiFailed:
        try:
            body = response.json()
            said, code = str(body["error"]), body.get("code")
        except (ValueError, KeyError, TypeError, AttributeError):
            said = f"{response.url} answered {response.status_code} without an explanation; is it a controller?"
            code = None
        # A controller's errors have a code; an inference server's have none.
        if code is None and (what := self._inference_server()):
            said = f"{self.url} is {what}; --api needs the address of a controller ({_USUAL_API} by default)"
        return ApiFailed(said, response.status_code)

    def _inference_server(self) -> str:
        """The kind of server at the URL if it speaks the inference protocol, else ""."""
        try:
            metadata = self._client.get("/v2").json()
            name, _ = str(metadata["name"]), metadata["extensions"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return ""
        return "a gateway" if "gateway" in name else "an inference server"

    def _unreachable(self, error: Exception) -> ApiFailed:
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return ApiFailed(f"the controller at {self.url} did not answer in time; try another with --api")
        if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
            return ApiFailed(f"--api: expected http://HOST:PORT, given '{self.url}'")
        if "certificate" in str(error).lower():
            return ApiFailed(f"the controller at {self.url} is not trusted ({error}); name its authority with {CA}")
        is_cut = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
        hint = hint_of_tls(self.url) if is_cut else hint_of_plain(self.url, str(error))
        return ApiFailed(
            f"no controller{self._whose} answers at {self.url} ({error}); if 'isochrone up' is running, try again in a "
            f"few seconds; else start it, or name a controller with --api{hint}"
        )


class CallerToken(httpx.Auth):
    """Adds the user's token to each request: ISOCHRONE_API_TOKEN, or that of ``isochrone login`` at a controller, which
    may expire while a command runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if token_fields():
            request.headers.update(token_fields())
        elif "authorization" not in request.headers:
            try:
                token = _kept_token(self._url)
            except LoginFailed as error:
                raise ApiFailed(str(error)) from None
            if token:
                request.headers["authorization"] = f"Bearer {token}"
        yield request


def _kept_token(url: str) -> str:
    if not has_logins():
        return ""
    # A tenth of a second, which commands of users without logins need not spend.
    from isochrone.secure.oidc.login.renewal import current_token

    return current_token(url)


def api_url(given: str) -> str:
    """The URL of the control API that ``--api`` names; "": of the fleet that was started last on this machine."""
    last = last_fleet() if not given else None
    url = given or (last.api if last is not None else "") or _USUAL_API
    return (url if "://" in url else f"http://{url}").rstrip("/")


def _headers() -> dict[str, str]:
    """Of every request. ISOCHRONE_API_TOKEN goes before the token of ``isochrone login``."""
    return {"x-isochrone-user": user(), **token_fields()}


def token_fields() -> dict[str, str]:
    """The header with ISOCHRONE_API_TOKEN, for controllers and for other processes that the user names."""
    try:
        return api_token.token_fields()
    except InvalidArgument as error:
        raise ApiFailed(str(error)) from None


def user() -> str:
    """The user of this terminal: user@host."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # A container's user often has no name.
        name = f"uid{os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def part(name: str) -> str:
    """A name, quoted as one part of a path."""
    return quote(name, safe="")


def print_json(record: Any) -> None:
    typer.echo(json.dumps(in_full(record)))


@contextmanager
def failing_as(command: str) -> Iterator[None]:
    """End the command with the error's message and status 1 on failure."""
    try:
        yield
    except (ApiFailed, IsochroneError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            # As in "isochrone audit show … | head": Typer ends the command without a word, with status 1.
            raise
        typer.secho(f"isochrone {command}: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _is_output_closed() -> bool:
    """Whether nobody reads standard output any more. If somebody does, it was a connection of the command's."""
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
        return bool(poller.poll(0))
    except (OSError, ValueError, AttributeError):  # it was closed before the command started
        return False
