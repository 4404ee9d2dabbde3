"""The common metrics port of several processes speaks TLS where the server does, and follows the files."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

import pytest

from development_ca import DevelopmentCa
from gateway_process import StartGateway
from sample_models import write_models
from server_process import ServerProcess, StartServer
from watching import metrics, wait_for


def check(server: ServerProcess, ca: DevelopmentCa) -> None:
    """The metrics page and flight records: over TLS with a certificate, and in no other way."""
    known = ca.context("alice")
    assert "isochrone_processes" in {family.name for family in metrics(server, known)}
    base = f"127.0.0.1:{server.metrics_port}"
    with urllib.request.urlopen(f"https://{base}/v1/flights", timeout=60, context=known) as answer:
        assert isinstance(json.load(answer), dict)
    for scheme, context in (("http", None), ("https", ca.context())):
        for target in ("/metrics", "/v1/flights"):
            with pytest.raises(OSError):
                urllib.request.urlopen(f"{scheme}://{base}{target}", timeout=60, context=context).read()


def serial(server: ServerProcess, ca: DevelopmentCa) -> str:
    """Of the certificate that the metrics port shows."""
    with (
        socket.create_connection(("127.0.0.1", server.metrics_port), timeout=60) as plain,
        ca.context("alice").wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        shown = connection.getpeercert()
    assert shown is not None
    return str(shown["serialNumber"])


def test_the_metrics_port_of_several_processes_speaks_tls(
    tmp_path: Path, server_factory: StartServer, gateway_factory: StartGateway
) -> None:
    ca = DevelopmentCa(tmp_path / "ca").issue("server", "localhost", "127.0.0.1", client=True)
    ca.issue("alice", client=True)
    models = write_models(tmp_path / "models", "identity_int32")
    several = ("--processes", "2", *ca.server_flags("server"))
    with (
        server_factory(models, *several) as worker,
        gateway_factory([worker], *several, *ca.upstream_flags("server")) as gateway,
    ):
        for each in (worker, gateway):
            check(each, ca)
        before = {each.pid: serial(each, ca) for each in (worker, gateway)}
        ca.issue("server", "localhost", "127.0.0.1", client=True)
        for each in (worker, gateway):
            wait_for(lambda each=each: serial(each, ca) != before[each.pid])
