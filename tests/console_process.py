"""A controller with an access file and the console, in a process of its own, and browsers without a screen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import httpx

from logged_ports import wait_ports

_SECONDS = 60


@dataclass
class ConsoleProcess:
    url: str
    port: int
    log: Path
    access: Path
    tokens: Mapping[str, str]
    audit: Path

    def browser(self, **settings: Any) -> httpx.Client:
        """Keeps cookies, follows no redirect."""
        return httpx.Client(base_url=self.url, trust_env=False, timeout=_SECONDS, **settings)

    def origin(self) -> dict[str, str]:
        return {"origin": self.url}

    def with_token(self, browser: httpx.Client, token: str, next_page: str = "/console/") -> httpx.Response:
        """The form of the login page, sent."""
        return browser.post("/console/login", data={"token": token, "next": next_page}, headers=self.origin())

    def to_provider(self, browser: httpx.Client, name: str = "plant", next_page: str = "/console/") -> str:
        """The address that the browser is sent to."""
        form = {"provider": name, "next": next_page}
        page = browser.post("/console/login/provider", data=form, headers=self.origin())
        assert page.status_code == 200, page.text
        return unescape(re.findall(r'content="0; url=([^"]+)"', page.text)[0])

    def session(self, browser: httpx.Client) -> dict[str, Any]:
        answer = browser.get("/console/session")
        return dict(answer.json()) if answer.status_code == 200 else {}

    def page_headers(self, browser: httpx.Client) -> dict[str, str]:
        """What the console's scripts send with a change."""
        return {**self.origin(), "x-isochrone-page-token": self.session(browser)["page_token"]}

    def change_access(self, before: str, after: str) -> None:
        text = self.access.read_text()
        assert before in text
        unfinished = self.access.with_suffix(".new")
        unfinished.write_text(text.replace(before, after))
        unfinished.replace(self.access)


@contextmanager
def console_process(folder: Path, tokens: Mapping[str, str]) -> Iterator[ConsoleProcess]:
    """``folder`` has access.yaml."""
    access = folder / "access.yaml"
    log = folder / "control.log"
    command = [
        *(sys.executable, "-m", "isochrone", "control", "--store", f"sqlite:{folder / 'fleet.db'}", "--fleet", "plant"),
        *("--listen", "127.0.0.1:0", "--access", str(access), "--console", "--log-json"),
        *("--audit", str(folder / "audit")),
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "COLUMNS": "200"})
    try:
        port = wait_ports(log, "control", lives=lambda: process.poll() is None)["control"]
        yield ConsoleProcess(f"http://127.0.0.1:{port}", port, log, access, tokens, folder / "audit")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_SECONDS)
