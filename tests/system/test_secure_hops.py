"""TLS from a stock client over a gateway to a worker, each with a certificate of its own, and who is refused."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stock_clients import KINDS, StockClient
from typer.testing import CliRunner

from development_ca import DevelopmentCa
from gateway_process import GatewayProcess, StartGateway
from isochrone.cli.main import app
from sample_models import write_models
from server_process import ServerProcess, StartServer
from watching import metrics, wait_for

VALUES = np.arange(5, dtype=np.int32)
LARGE = np.arange(200_000, dtype=np.int32)
BODY = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[2],"data":[1,2]}]}'


@dataclass
class Hops:
    """A gateway in front of a worker; both ask for certificates."""

    ca: DevelopmentCa
    worker: ServerProcess
    gateway: GatewayProcess


def make_ca(directory: Path) -> DevelopmentCa:
    ca = DevelopmentCa(directory).issue("worker", "localhost", "127.0.0.1", uri="spiffe://example.org/worker")
    ca.issue("gateway", "localhost", "127.0.0.1", uri="spiffe://example.org/gateway", client=True)
    return ca.issue("alice", client=True, uri="spiffe://example.org/alice")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("hops") / "models", "identity_int32", "repeat")


@pytest.fixture(scope="module")
def hops(
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
    server_factory: StartServer,
    gateway_factory: StartGateway,
) -> Iterator[Hops]:
    ca = make_ca(tmp_path_factory.mktemp("authority") / "ca")
    with (
        server_factory(repository, *ca.server_flags("worker")) as worker,
        gateway_factory([worker], *ca.server_flags("gateway"), *ca.upstream_flags("gateway")) as gateway,
    ):
        yield Hops(ca, worker, gateway)


def connect(kind: str, hops: Hops, name: str = "alice") -> StockClient:
    certificate, key = hops.ca.pair(name)
    ca = str(hops.ca.ca)
    if kind == "http":
        options = {"ca_certs": ca, "certfile": certificate, "keyfile": key}
        return StockClient(kind, hops.gateway, ssl=True, ssl_options=options)
    if kind == "http.aio":
        return StockClient(kind, hops.gateway, ssl=True, ssl_context=hops.ca.context(name))
    files = {"root_certificates": ca, "certificate_chain": certificate, "private_key": key}
    return StockClient(kind, hops.gateway, ssl=True, **files)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stock_client_over_both_hops(hops: Hops, kind: str) -> None:
    with contextlib.closing(connect(kind, hops)) as client:
        assert client.call("is_model_ready", "identity_int32")
        for values in (VALUES, LARGE):
            assert np.array_equal(client.infer("identity_int32", {"IN": values}).as_numpy("OUT"), values)
        # Control calls go the same way.
        assert client.count("identity_int32")["success"] > 0
        assert {model["name"] for model in _models(client)} == {"identity_int32", "repeat"}


def _models(client: StockClient) -> list[dict[str, Any]]:
    answer = client.control("get_model_repository_index")
    return list(answer["models"] if isinstance(answer, dict) else answer)


def s_client(port: int, *words: str) -> str:
    """What openssl says of a connection; it writes nothing over it."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *words]
    ended = subprocess.run(command, input="", capture_output=True, text=True, timeout=300)
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("hop", ["worker", "gateway"])
@pytest.mark.parametrize(
    ("words", "alert"),
    [
        (["-tls1", "-cipher", "ALL:@SECLEVEL=0"], "alert protocol version"),
        (["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], "alert protocol version"),
        (["-tls1_2", "-cipher", "AES128-GCM-SHA256"], "alert handshake failure"),
        (["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA"], "alert handshake failure"),
        (["-tls1_2", "-alpn", "spdy/1"], "no application protocol"),
        (["-alpn", "h3,http/1.0"], "no application protocol"),
    ],
)
def test_openssl_is_refused_what_is_old_weak_or_foreign(hops: Hops, hop: str, words: list[str], alert: str) -> None:
    certificate, key = hops.ca.pair("alice")
    own = ["-cert", certificate, "-key", key, "-CAfile", str(hops.ca.ca)]
    port = getattr(hops, hop).http_port
    assert alert in s_client(port, *own, *words)
    assert "Verify return code: 0 (ok)" in s_client(port, *own, "-alpn", "h2", "-verify_return_error")


@pytest.mark.parametrize("hop", ["worker", "gateway"])
def test_who_shows_no_certificate_or_a_strange_one_gets_nothing(hops: Hops, hop: str, tmp_path: Path) -> None:
    process: ServerProcess = getattr(hops, hop)
    stranger = DevelopmentCa(tmp_path / "other").issue("alice", client=True)
    stranger_context = hops.ca.context()
    stranger_context.load_cert_chain(*stranger.pair("alice"))
    hops.ca.issue("late", client=True, expired=True)
    for context in (hops.ca.context(), stranger_context, hops.ca.context("late")):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ready(process, context)
    assert ready(process, hops.ca.context("alice")) == 200
    assert any(event.get("event") == "a TLS handshake failed" for event in process.log_events())


def ready(server: ServerProcess, context: ssl.SSLContext) -> int:
    with contextlib.closing(http.client.HTTPSConnection(server.http_url, timeout=60, context=context)) as connection:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status


@pytest.mark.parametrize(
    ("certificate", "flags", "on_gateway", "on_worker"),
    [
        ("expired", ["gateway"], "certificate has expired", "alert certificate expired"),
        ("elsewhere", ["gateway"], "IP address mismatch", "alert bad certificate"),
        ("strange", ["gateway"], "unable to get local issuer certificate", "does not trust the authority"),
        ("worker", [""], "certificate required", "the client shows no certificate"),
        ("worker", ["stranger"], "unknown ca", "the client's certificate is refused"),
    ],
)
def test_both_sides_say_why_they_refuse_each_other(
    certificate: str,
    flags: list[str],
    on_gateway: str,
    on_worker: str,
    repository: Path,
    tmp_path: Path,
    server_factory: StartServer,
    gateway_factory: StartGateway,
) -> None:
    ca = (
        make_ca(tmp_path / "ca")
        .issue("elsewhere", "elsewhere.example", "10.9.9.9")
        .issue("expired", "127.0.0.1", expired=True)
    )
    other = DevelopmentCa(tmp_path / "other").issue("strange", "127.0.0.1").issue("stranger", client=True)
    served = (other if certificate == "strange" else ca).pair(certificate)
    worker_flags = ["--tls-cert", served[0], "--tls-key", served[1], "--tls-client-ca", str(ca.ca)]
    shown = other.upstream_flags("stranger")[2:] if flags == ["stranger"] else ca.upstream_flags(flags[0])[2:]
    with server_factory(repository, *worker_flags) as worker:
        # Named as text: it is not waited for.
        with gateway_factory([worker.http_url], "--upstream-ca", str(ca.ca), *shown) as gateway:
            wait_for(lambda: on_gateway in gateway.log_text().lower().replace("ip address", "IP address"))
            connection = http.client.HTTPConnection(gateway.http_url, timeout=60)
            with contextlib.closing(connection):
                connection.request("POST", "/v2/models/identity_int32/infer", BODY)
                assert connection.getresponse().status == 503
        wait_for(lambda: on_worker in worker.log_text())


def test_a_name_that_all_workers_share(
    repository: Path, tmp_path: Path, server_factory: StartServer, gateway_factory: StartGateway
) -> None:
    """The workers' certificates name the service; their addresses change."""
    ca = make_ca(tmp_path / "ca").issue("service", "workers.internal")
    with (
        server_factory(repository, *ca.server_flags("service", mutual=False)) as worker,
        gateway_factory([worker], *ca.upstream_flags(), "--upstream-server-name", "workers.internal") as gateway,
    ):
        for kind in ("http", "grpc"):
            with contextlib.closing(StockClient(kind, gateway)) as client:
                assert client.infer("identity_int32", {"IN": VALUES}).as_numpy("OUT").tolist() == VALUES.tolist()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--upstream-cert", "a"], "--upstream-cert and --upstream-key go together"),
        (["--upstream-cert", "a", "--upstream-key", "b"], "need --upstream-ca"),
        (["--upstream-server-name", "a"], "need --upstream-ca"),
        (["--upstream-ca", "/nowhere/ca.crt"], "/nowhere/ca.crt: authorities: expected PEM certificates"),
        (["--tls-client-ca", "a"], "--tls-client-ca needs --tls-cert"),
    ],
)
@pytest.mark.parametrize("command", ["gateway", "pick"])
def test_mistakes_on_the_command_line(command: str, words: list[str], error: str) -> None:
    ended = CliRunner().invoke(app, [command, "--metrics-port", "-1", "--upstream", "a:1", *words])
    assert ended.exit_code == 1
    assert error in ended.stderr
    assert ended.stderr.count("\n") == 1


class Load:
    """Requests over the gateway until the block ends: on a connection that stays open, on new ones, and by gRPC."""

    def __init__(self, hops: Hops) -> None:
        self._hops = hops
        self._ends = threading.Event()
        self.answered = dict.fromkeys(("kept", "new", "grpc"), 0)
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(kind,)) for kind in self.answered]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def more(self) -> None:
        """Until every kind has had some more answers."""
        seen = dict(self.answered)
        wait_for(lambda: self.failures or all(self.answered[kind] > seen[kind] + 5 for kind in seen))

    def _run(self, kind: str) -> None:
        try:
            with contextlib.ExitStack() as stack:
                ask = self._asking(kind, stack)
                while not self._ends.is_set():
                    ask()
                    self.answered[kind] += 1
        except Exception as error:
            self.failures.append(f"{kind}: {type(error).__name__}: {error}")

    def _asking(self, kind: str, stack: contextlib.ExitStack) -> Callable[[], None]:
        if kind == "grpc":
            client = stack.enter_context(contextlib.closing(connect("grpc", self._hops)))
            return lambda: np.testing.assert_array_equal(
                client.infer("identity_int32", {"IN": VALUES}).as_numpy("OUT"), VALUES
            )
        if kind == "kept":
            connection = stack.enter_context(contextlib.closing(self._connection()))
            return lambda: self._post(connection)

        def afresh() -> None:
            with contextlib.closing(self._connection()) as connection:
                self._post(connection)

        return afresh

    def _connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            self._hops.gateway.http_url, timeout=60, context=self._hops.ca.context("alice")
        )

    def _post(self, connection: http.client.HTTPSConnection) -> None:
        connection.request("POST", "/v2/models/identity_int32/infer", BODY)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise AssertionError(f"{answer.status} {body!r}")


def serial_of(server: ServerProcess, ca: DevelopmentCa) -> str:
    with (
        socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as plain,
        ca.context("alice").wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        certificate = secure.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])


def serials(ca: DevelopmentCa) -> dict[str, str]:
    return {held.name: held.facts.serial for held in ca.authority.listing() if held.name}


def loaded(server: ServerProcess) -> list[int]:
    """How often the process has loaded its own files again, and those for workers."""
    events = [event.get("event") for event in server.log_events()]
    return [
        events.count("the certificate was loaded again"),
        events.count("the certificates for workers were loaded again"),
    ]


def test_certificates_and_their_authority_are_replaced_under_load_without_a_failure(
    repository: Path, tmp_path: Path, server_factory: StartServer, gateway_factory: StartGateway
) -> None:
    ca = make_ca(tmp_path / "ca")
    upstreams = tmp_path / "workers.txt"
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(server_factory(repository, *ca.server_flags("worker")))
        upstreams.write_text(f"{worker.http_url}\n")
        gateway = stack.enter_context(
            gateway_factory(
                [], "--upstream-file", str(upstreams), *ca.server_flags("gateway"), *ca.upstream_flags("gateway")
            )
        )
        gateway.wait_workers(1)
        first = serials(ca)
        load = stack.enter_context(Load(Hops(ca, worker, gateway)))
        load.more()

        def settled(before: list[list[int]]) -> None:
            """Both processes have read what has changed, and requests go on."""
            wait_for(lambda: loaded(worker)[0] > before[0][0])
            wait_for(lambda: all(new > old for new, old in zip(loaded(gateway), before[1], strict=True)))
            now = serials(ca)
            assert serial_of(worker, ca) == now["worker"]
            assert serial_of(gateway, ca) == now["gateway"]
            load.more()

        for change in (
            lambda: ca.authority.renew(datetime.now(UTC)),
            *(lambda: ca.authority.replace(timedelta(days=10), datetime.now(UTC)) for _ in range(3)),
        ):
            before = [loaded(worker), loaded(gateway)]
            change()
            settled(before)
        assert all(serial != first[name] for name, serial in serials(ca).items())
        # The gateway's first connections are as old as the gateway. A worker that knows the new authority alone shows
        # that the gateway trusts it, and presents the new certificate.
        second = stack.enter_context(server_factory(repository, *ca.server_flags("worker")))
        upstreams.write_text(f"{worker.http_url}\n{second.http_url}\n")
        gateway.wait_workers(2)
        upstreams.write_text(f"{second.http_url}\n")
        wait_for(lambda: any(event.get("removed") == [worker.http_url] for event in gateway.log_events()))
        load.more()
        load.stop()
        page = {
            sample.name: sample.value for family in metrics(gateway, ca.context("alice")) for sample in family.samples
        }
        held = next(held for held in ca.authority.listing() if held.name == "gateway")
        assert page["isochrone_certificate_expiry_timestamp_seconds"] == held.facts.expires.timestamp()
    assert load.failures == []


def test_a_broken_file_keeps_the_earlier_certificate(hops: Hops) -> None:
    certificate = Path(hops.ca.pair("gateway")[0])
    good, before = certificate.read_bytes(), serial_of(hops.gateway, hops.ca)
    certificate.write_text("broken")
    try:
        wait_for(lambda: "the certificate cannot be loaded again" in hops.gateway.log_text())
        assert serial_of(hops.gateway, hops.ca) == before
        with contextlib.closing(connect("grpc", hops)) as client:
            assert client.call("is_server_ready")
    finally:
        certificate.write_bytes(good)
