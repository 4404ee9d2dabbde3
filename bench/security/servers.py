"""A worker, or a gateway before workers, in one state of security; and the check that it is in that state."""

from __future__ import annotations

import argparse
import http.client
import ssl
import subprocess
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.observe_cost import HOST, MODEL, cpu_seconds, started
from bench.ports import free_ports
from bench.security.states import Material, State

_LIVE = "/v2/models/" + MODEL


@dataclass
class Server:
    state: State
    port: int
    processes: list[subprocess.Popen[bytes]]
    compiled: bool
    folder: Path
    #: By cell: what was measured, round by round.
    figures: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(each.pid) for each in self.processes)

    def url(self, protocol: str) -> str:
        # The name is in the certificate.
        return f"{protocol}{'s' if self.state.tls else ''}://{HOST}:{self.port}"


def start(
    stack: ExitStack, setup: str, state: State, given: argparse.Namespace, place: Path, material: Material
) -> Server:
    folder = place / setup / state.name.replace(" ", "-").replace(",", "")
    folder.mkdir(parents=True)
    front = material.server_flags(state, folder)
    inner, upstream = material.upstream_flags(state)

    def worker(number: int, cores: list[int], flags: list[str]) -> tuple[subprocess.Popen[bytes], Any]:
        words = ["serve", str(place / "models"), "--host", HOST, "--http-port", "0", "--grpc-port", "0"]
        return stack.enter_context(
            started([*words, "--metrics-port", "0", *flags], cores, folder / f"worker-{number}.log")
        )

    if setup == "worker":
        process, ready = worker(0, given.front_cores, front)
        return Server(state, ready["http"], [process], ready["compiled"], folder)
    cores = given.worker_cores
    workers = [worker(number, [cores[number % len(cores)]], inner) for number in range(given.workers)]
    (port,) = free_ports(1)
    words = ["gateway", "--listen", f"{HOST}:{port}", "--metrics-port", "0", "--probe-interval", "1", *front, *upstream]
    for _, ready in workers:
        words += ["--upstream", f"{HOST}:{ready['http']}"]
    process, ready = stack.enter_context(started(words, given.front_cores, folder / "gateway.log"))
    return Server(state, port, [process, *(each for each, _ in workers)], ready["compiled"], folder)


def check(server: Server, material: Material) -> None:
    """That a server is in the state that its row names: whom it answers, and whom not."""
    state, authorization = server.state, material.authorization(server.state)
    found = {"as it should be": _asks(server, material, authorization, state.tls, state.mutual)}
    expected = {"as it should be": 200}
    if authorization:
        found["without a token"] = _asks(server, material, "", state.tls, state.mutual)
        expected["without a token"] = 401
    if state.tls:
        found["without TLS"] = _asks(server, material, authorization, False, False)
        expected["without TLS"] = 0
    if state.mutual:
        found["without a certificate"] = _asks(server, material, authorization, True, False)
        expected["without a certificate"] = 0
    if found != expected:
        raise SystemExit(f"bench.security: {state.name}: a request was answered {found}, expected {expected}")


def check_audit(server: Server, answered: int) -> None:
    """The log has the requests: those that are not on record cost nothing."""
    from isochrone.secure.audit.reading import merged

    logs = [path.parent for path in (server.folder / "audit").rglob("segment-*")]
    recorded = sum(record.action == "infer" for log in set(logs) for _, record in merged([log]))
    if recorded < answered * 0.99:
        raise SystemExit(f"bench.security: {server.state.name}: {recorded} records of {answered} requests")


def context(material: Material, mutual: bool) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(material.ca))
    if mutual:
        made.load_cert_chain(*material.pair("client"))
    return made


def _asks(server: Server, material: Material, authorization: str, tls: bool, mutual: bool) -> int:
    """The status of an answer; 0: there was none."""
    connection: http.client.HTTPConnection
    if tls:
        connection = http.client.HTTPSConnection(HOST, server.port, timeout=30, context=context(material, mutual))
    else:
        connection = http.client.HTTPConnection(HOST, server.port, timeout=30)
    with closing(connection):
        try:
            connection.request("GET", _LIVE, headers={"authorization": authorization} if authorization else {})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
