"""oidc-provider from npm as a process, and a scripted user who fills in its pages."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.parse import urljoin

import httpx

from bench.worker.peers.process import PEERS, PeerUnavailable

_MODULES: Final = PEERS / "node" / "node_modules"
_SCRIPT: Final = Path(__file__).with_name("oidc_provider.mjs")
#: What the provider's clients have as their secret.
SECRET: Final = "a secret:with%signs"
CLIENT: Final = "cli"


class OpenIdProvider:
    """``with OpenIdProvider(directory) as provider``. With a certificate: over TLS."""

    def __init__(self, directory: Path, certificate: tuple[Path, Path] | None = None, token_seconds: int = 600) -> None:
        if not (_MODULES / "oidc-provider").is_dir():
            raise PeerUnavailable("oidc-provider is not installed: run `make peers` first")
        self._arguments = [str(each) for each in certificate or ()]
        self._log = directory / "oidc-provider.log"
        self._token_seconds = token_seconds
        self.issuer = ""

    def __enter__(self) -> OpenIdProvider:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                ["node", str(_SCRIPT), str(_MODULES), *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "TOKEN_SECONDS": str(self._token_seconds)},
            )
        self.issuer = self._line()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def rotate(self, *names: str) -> None:
        """Have these keys, of which the first signs: rsa-1, ec-2, …"""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(names) + "\n")
        self._process.stdin.flush()
        assert self._line() == "rotated"

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=30)

    def _line(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # The library has notices of its own there.
            if not line.startswith("oidc-provider "):
                return line.strip()
        raise AssertionError(self._log.read_text())


class _Form(HTMLParser):
    """The first form of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.action = ""
        self.fields: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form" and not self.action:
            self.action = given.get("action") or ""
        elif tag == "input" and (name := given.get("name")):
            self.fields[name] = given.get("value") or ""


@contextmanager
def browser() -> Iterator[httpx.Client]:
    with httpx.Client(follow_redirects=True, trust_env=False, timeout=30) as client:
        yield client


def fill_in(client: httpx.Client, url: str, entries: Mapping[str, str]) -> httpx.Response:
    """Open a page and submit its forms, one after the other, until a page has none: that page."""
    page = client.get(url)
    for _ in range(8):
        form = _Form()
        form.feed(page.text)
        if not form.action or page.status_code != 200:
            return page
        fields = {name: entries.get(name, value) for name, value in form.fields.items()}
        page = client.post(urljoin(str(page.url), form.action), data=fields)
    raise AssertionError(f"forms without an end at {page.url}")


def log_in(url: str, name: str = "ada") -> httpx.Response:
    """As a user who enters name and password and agrees."""
    with browser() as client:
        return fill_in(client, url, {"login": name, "password": "of a test"})
