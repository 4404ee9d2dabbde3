"""A fleet of ``isochrone up`` with certificates of a development authority, on known ports, and callers of it."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.ports import ports_in_a_row
from development_ca import DevelopmentCa
from sample_models import write_models
from up_process import ISOCHRONE, SECONDS, Up, start_up
from watching import wait_for

MODEL = "identity_fp32"
PATH = f"/v2/models/{MODEL}/infer"
BODY = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}]})
NO_HEADERS: Mapping[str, str] = {}


class SecureFleet:
    """``write`` makes its file; ``run`` starts it."""

    def __init__(self, directory: Path, *, workers: int = 2, gateways: int = 2) -> None:
        self.directory = directory
        self.ca = DevelopmentCa(directory / "ca")
        self.ca.issue("fleet", "127.0.0.1", "localhost", client=True, uri="spiffe://plant/fleet")
        write_models(directory / "models", MODEL)
        self.control, self.first_worker = ports_in_a_row(1), ports_in_a_row(3 * workers)
        self.front, self.pages = ports_in_a_row(gateways), ports_in_a_row(gateways)
        self.workers, self.gateways = workers, gateways
        self.file = directory / "fleet.yaml"

    def write(self, tls: str = "", gateway: str = "", control: str = "", more: Sequence[str] = ()) -> Path:
        """``tls``: further keys of security.tls, such as "mode: permissive"; "none": the fleet is plain. ``more``:
        other keys of security."""
        folder = self.ca.directory
        files = f"cert: {folder}/fleet/tls.crt, key: {folder}/fleet/tls.key, ca: {folder}/ca.crt"
        keys = [*([] if tls == "none" else [f"tls: {{{files}{', ' if tls else ''}{tls}}}"]), *more]
        security = f"security: {{{', '.join(keys)}}}" if keys else ""
        self.file.write_text(
            f"""
name: secure
repository: models
control: {{listen: "127.0.0.1:{self.control}"{control}}}
gateways:
  front: {{listen: "127.0.0.1:{self.front}", metrics_port: {self.pages}, count: {self.gateways}{gateway}}}
pools: {{cpu: {{workers: {self.workers}, first_port: {self.first_worker}}}}}
models: {{{MODEL}: {{version: 1}}}}
{security}
"""
        )
        return self.file

    @contextmanager
    def run(self) -> Iterator[Up]:
        with start_up(str(self.file), log=self.directory / "up.log") as up:
            up.wait_for("Ctrl-C stops everything")
            yield up

    def command(self, *words: str, **environment: str) -> tuple[int, str]:
        """As the user who started the fleet; ``environment`` replaces what that brings."""
        found = subprocess.run(
            [*ISOCHRONE, *words],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return found.returncode, found.stdout + found.stderr

    def apply(self) -> None:
        """And wait until every process runs by the file: no process waits for a restart."""
        code, said = self.command("apply", str(self.file), "--yes")
        assert code == 0, said

    def log(self, process: str) -> str:
        return (self.directory / "state" / "logs" / f"{process}.log").read_text()


def request(
    port: int,
    context: ssl.SSLContext | None,
    path: str = PATH,
    body: str | None = BODY,
    host: str = "127.0.0.1",
    headers: Mapping[str, str] = NO_HEADERS,
) -> tuple[int, bytes]:
    """On a connection of its own."""
    connection = (
        http.client.HTTPConnection(host, port, timeout=SECONDS)
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
    )
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Callers:
    """Sends requests, one after the other, to gateways in turn: to the next one where a gateway does not accept, or
    ends the connection before it has begun to answer, as callers behind a load balancer."""

    def __init__(
        self, ports: list[int], context: ssl.SSLContext | None = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self._ports, self._context, self._headers = ports, context, headers
        self.answered = 0
        self.failed: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="callers")

    def __enter__(self) -> Callers:
        self._thread.start()
        self.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def wait(self, count: int) -> None:
        """Until so many more requests are answered."""
        before = self.answered
        wait_for(lambda: self.answered >= before + count or self.failed)

    def _run(self) -> None:
        turn = 0
        while not self._stopping.is_set():
            turn += 1
            reasons = []
            for offset in range(len(self._ports)):
                port = self._ports[(turn + offset) % len(self._ports)]
                try:
                    status, body = request(port, self._context, headers=self._headers)
                except (http.client.RemoteDisconnected, ConnectionError) as error:
                    reasons.append(f"{port}: {error}")
                    continue
                if status == 200:
                    self.answered += 1
                else:
                    self.failed.append(f"{port}: {status} {body!r}")
                break
            else:
                self.failed.append("; ".join(reasons))
