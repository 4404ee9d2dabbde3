"""TLS that is old, weak, or for somebody else: refused by a worker, and by a gateway on both of its sides."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from bad_certificates import answer_to, forge, forgeries, hello

from development_ca import DevelopmentCa
from gateway_process import StartGateway
from sample_models import write_models
from server_process import ServerProcess, StartServer
from watching import wait_for

TLS12, SCSV = 0x0303, 0x5600
#: ECDHE-ECDSA-AES128-GCM-SHA256, which is accepted.
GOOD = 0xC02B
OFFERS = {
    "SSL 3.0": (0x0300, [GOOD, 0xC009, 0x002F]),
    "TLS 1.0": (0x0301, [GOOD, 0xC009, 0x002F]),
    "TLS 1.1": (0x0302, [GOOD, 0xC009, 0x002F]),
    "suites without encryption": (TLS12, [0xC006, 0xC010, 0x003B, 0x0002, 0x0001]),
    "export suites": (TLS12, [0x0003, 0x0006, 0x0008, 0x0014, 0x0017, 0x0062, 0x0064]),
    "anonymous suites": (TLS12, [0xC018, 0xC019, 0x0034, 0x00A6]),
    "RC4 and 3DES": (TLS12, [0xC007, 0xC008, 0x0005, 0x0004, 0x000A]),
    "CBC suites": (TLS12, [0xC009, 0xC00A, 0xC023, 0xC024, 0xC013, 0xC027, 0x002F, 0x003C]),
    "suites without forward secrecy": (TLS12, [0x009C, 0x009D]),
    "a fallback that an attacker has forced": (TLS12, [GOOD, SCSV]),
}


@dataclass
class Ends:
    ca: DevelopmentCa
    #: Ports by what serves there.
    ports: dict[str, int]
    servers: dict[str, ServerProcess]


@pytest.fixture(scope="module")
def ends(
    tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer, gateway_factory: StartGateway
) -> Iterator[Ends]:
    folder = tmp_path_factory.mktemp("tls")
    ca = DevelopmentCa(folder / "ca").issue("server", "localhost", "127.0.0.1", client=True).issue("alice", client=True)
    repository = write_models(folder / "models", "identity_fp32")
    flags = ca.server_flags("server")
    with (
        server_factory(repository, *flags) as worker,
        gateway_factory([worker], *flags, *ca.upstream_flags("server")) as gateway,
    ):
        gateway.wait_workers(1)
        ports = {"worker": worker.http_port, "worker's gRPC port": worker.grpc_port, "gateway": gateway.http_port}
        yield Ends(ca, ports, {"worker": worker, "gateway": gateway})


def ready(port: int, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
    with contextlib.closing(connection):
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status


def test_offers_of_what_is_old_or_weak(ends: Ends, tried: Counter[str]) -> None:
    for port in ends.ports.values():
        # The message is one that is accepted, but for what each offer changes.
        accepted = answer_to(port, hello(TLS12, [GOOD]))
        assert (accepted[0], accepted[5]) == (0x16, 2)
        for name, (version, suites) in OFFERS.items():
            answer = answer_to(port, hello(version, suites))
            assert answer[0] == 0x15, name
            assert answer[5] == 2, name
            tried[f"TLS: {name}"] += 1


def test_compression_is_never_agreed(ends: Ends, tried: Counter[str]) -> None:
    for port in ends.ports.values():
        # A client must offer to do without it: one that does not is refused, others get that.
        assert answer_to(port, hello(TLS12, [GOOD], b"\1"))[0] == 0x15
        answer = answer_to(port, hello(TLS12, [GOOD], b"\1\0"))
        session = answer[43]
        assert answer[5] == 2
        assert answer[44 + session : 47 + session] == b"\xc0\x2b\0"
        tried["TLS: compression"] += 2


def test_renegotiation_is_refused(ends: Ends, tried: Counter[str]) -> None:
    certificate, key = ends.ca.pair("alice")
    for port in ends.ports.values():
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_2", "-alpn", "http/1.1"]
        command += ["-cert", certificate, "-key", key, "-CAfile", str(ends.ca.ca)]
        ended = subprocess.run(command, input="R\n", capture_output=True, text=True, timeout=300)
        assert "RENEGOTIATING" in ended.stdout + ended.stderr
        assert "no renegotiation" in ended.stdout + ended.stderr
        tried["TLS: renegotiation"] += 1


def test_certificates_of_clients(ends: Ends, tmp_path: Path, tried: Counter[str]) -> None:
    bad = forgeries(tmp_path, ends.ca, for_server=False)
    for port in ends.ports.values():
        for name, pair in bad.items():
            context = ends.ca.context()
            context.load_cert_chain(*pair)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ready(port, context)
            tried[f"TLS: a client's certificate that is {name}"] += 1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ready(port, ends.ca.context())
        tried["TLS: no certificate of the client"] += 1
        assert ready(port, ends.ca.context("alice")) == 200
    for server in ends.servers.values():
        assert server.process.poll() is None


@dataclass
class Rogue:
    """Something on a worker's address, which the gateway must not talk to."""

    context: ssl.SSLContext
    refused: int = 0
    received: bytes = b""
    port: int = 0
    _sockets: list[socket.socket] = field(default_factory=list)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        thread = threading.Thread(target=self._serve, args=(listener,))
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            listener.close()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.settimeout(10)
            try:
                with self.context.wrap_socket(connection, server_side=True) as secure:
                    # In TLS 1.3 the client's refusal may come after the server's end of the handshake.
                    self.received += secure.recv(4096)
                    self.refused += not self.received
            except OSError:
                self.refused += 1
            finally:
                connection.close()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_workers_that_a_gateway_must_not_talk_to(
    tmp_path: Path, gateway_factory: StartGateway, tried: Counter[str]
) -> None:
    ca = DevelopmentCa(tmp_path / "ca").issue("gateway", "127.0.0.1", client=True)
    signer = str(ca.ca), str(ca.directory / "ca.key")

    def context(pair: tuple[str, str], protocol: str = "http/1.1") -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(*pair)
        made.set_alpn_protocols([protocol, "h2"])
        return made

    rogues = {
        f"a certificate that is {name}": Rogue(context(pair))
        for name, pair in forgeries(tmp_path, ca, for_server=True).items()
    }
    good = forge(tmp_path, "good", signer)
    for name, version in (("TLS 1.0 alone", ssl.TLSVersion.TLSv1), ("TLS 1.1 alone", ssl.TLSVersion.TLSv1_1)):
        rogues[name] = Rogue(context(good))
        rogues[name].context.set_ciphers("ALL:@SECLEVEL=0")
        rogues[name].context.minimum_version = rogues[name].context.maximum_version = version
    rogues["CBC suites alone"] = Rogue(context(good))
    rogues["CBC suites alone"].context.maximum_version = ssl.TLSVersion.TLSv1_2
    rogues["CBC suites alone"].context.set_ciphers("ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0")
    honest = Rogue(context(good))
    with contextlib.ExitStack() as stack:
        for each in (*rogues.values(), honest):
            stack.enter_context(each.serving())
        upstreams = [f"127.0.0.1:{each.port}" for each in (*rogues.values(), honest)]
        gateway = stack.enter_context(
            gateway_factory(upstreams, *ca.upstream_flags("gateway"), "--probe-interval", "1")
        )
        # Each is tried over both protocols.
        wait_for(lambda: all(each.refused >= 2 for each in rogues.values()) and honest.received)
        connection = stack.enter_context(
            contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=60))
        )
        connection.request("POST", "/v2/models/identity_fp32/infer", b"{}")
        assert connection.getresponse().status == 503
    for name, each in rogues.items():
        assert each.received == b"", name
        tried[f"TLS: a worker with {name}"] += each.refused
