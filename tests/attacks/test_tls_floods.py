"""Handshakes that never end, and records of garbage: honest clients are served meanwhile, and memory stays bounded."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from bad_certificates import hello
from guarded_servers import inference

from development_ca import DevelopmentCa
from gateway_process import StartGateway
from sample_models import write_models
from server_process import ServerProcess, StartServer
from watching import holds_from, wait_for

FLOOD = 200
#: Of a flood: some 50 KiB of OpenSSL's for each open handshake, and the allocator's reserve.
MOST_BYTES = 64 << 20
#: Only attackers come from it: a gateway, for one, opens and closes connections to its worker at its own time.
ATTACKERS_ADDRESS = "127.0.0.66"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> DevelopmentCa:
    return DevelopmentCa(tmp_path_factory.mktemp("ca") / "ca").issue("server", "localhost", "127.0.0.1", client=True)


@pytest.fixture(scope="module")
def servers(
    ca: DevelopmentCa,
    tmp_path_factory: pytest.TempPathFactory,
    server_factory: StartServer,
    gateway_factory: StartGateway,
) -> Iterator[list[ServerProcess]]:
    repository = write_models(tmp_path_factory.mktemp("flood") / "models", "identity_fp32")
    flags = ca.server_flags("server", mutual=False)
    with (
        server_factory(repository, *flags) as worker,
        gateway_factory([worker], *flags, *ca.upstream_flags()) as gateway,
    ):
        gateway.wait_workers(1)
        yield [worker, gateway]


def infers(connection: http.client.HTTPSConnection) -> None:
    connection.request("POST", "/v2/models/identity_fp32/infer", json.dumps(inference()))
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200


def honest(server: ServerProcess, ca: DevelopmentCa) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection("127.0.0.1", server.http_port, timeout=60, context=ca.context())


def attacker(server: ServerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.http_port), timeout=60, source_address=(ATTACKERS_ADDRESS, 0))


def half_of_a_hello(_: random.Random) -> bytes:
    return hello(0x0303, [0xC02B])[:60]


def whole_hello(_: random.Random) -> bytes:
    """The server has answered, and waits for the client's key."""
    return hello(0x0303, [0xC02B])


def endless_hello(_: random.Random) -> bytes:
    """Announces 16 MiB, and sends as much as fits in the buffers."""
    first = b"\x16\x03\x01\x40\0\1\xff\xff\xff" + bytes(16380)
    return first + 7 * (b"\x16\x03\x01\x40\0" + bytes(16384))


def garbage(source: random.Random) -> bytes:
    kind = source.choice([0x14, 0x15, 0x16, 0x17, 0x18, 0x80, 0xFF])
    return bytes([kind, 3, source.randrange(5)]) + source.randrange(1 << 16).to_bytes(2, "big") + os.urandom(200)


@pytest.mark.parametrize("sent", [half_of_a_hello, whole_hello, endless_hello, garbage])
def test_floods_of_handshakes(
    servers: list[ServerProcess], ca: DevelopmentCa, sent: Callable[[random.Random], bytes], tried: Counter[str]
) -> None:
    source = random.Random(7)
    for server in servers:
        with contextlib.closing(honest(server, ca)) as kept:
            infers(kept)
            before = server.resident_bytes()
            with contextlib.ExitStack() as stack:
                for number in range(FLOOD):
                    attack = stack.enter_context(attacker(server))
                    with contextlib.suppress(ConnectionError):
                        attack.sendall(sent(source))
                    tried["TLS: handshakes that do not end, and garbage"] += 1
                    if number % 20 == 0:
                        infers(kept)
                        with contextlib.closing(honest(server, ca)) as new:
                            infers(new)
                assert server.resident_bytes() - before < MOST_BYTES
                infers(kept)
                if sent in (half_of_a_hello, whole_hello):
                    assert holds_from(server, ATTACKERS_ADDRESS), "nobody was in the middle of a handshake"
            wait_for(lambda at=server: not holds_from(at, ATTACKERS_ADDRESS))
            infers(kept)
            assert "Traceback" not in server.log_text()


def test_clients_that_leave_in_the_middle(servers: list[ServerProcess], ca: DevelopmentCa, tried: Counter[str]) -> None:
    """Resets at every stage of a handshake, and of a request in TLS."""
    context = ca.context()
    for server in servers:
        for number in range(60):
            with contextlib.ExitStack() as stack:
                plain = stack.enter_context(attacker(server))
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                end = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
                for _ in range(number % 3):
                    with contextlib.suppress(ssl.SSLWantReadError):
                        end.do_handshake()
                    plain.sendall(outgoing.read())
                    if number % 3 == 2 and not incoming.pending:
                        incoming.write(plain.recv(16384))
            tried["TLS: clients that leave in the middle of a handshake"] += 1
        with contextlib.closing(honest(server, ca)) as connection:
            infers(connection)
        wait_for(lambda at=server: not holds_from(at, ATTACKERS_ADDRESS))
        assert "Traceback" not in server.log_text()
