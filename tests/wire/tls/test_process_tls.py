"""Calls by the process's own TLS: what is verified, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from development_ca import DevelopmentCa
from isochrone.protocol.access import control_token
from isochrone.wire.tls.client_tls import ClientTls
from isochrone.wire.tls.contexts import server_context
from isochrone.wire.tls.fleet_transport import fleet_transport
from isochrone.wire.tls.process_tls import process_tls, set_process_tls

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    set_process_tls(None)


def own(ca: DevelopmentCa, name: str = "fleet", server_name: str = "") -> ClientTls:
    certificate, key = ca.pair(name)
    return ClientTls(ca.ca, Path(certificate), Path(key), server_name)


def called(
    ca: DevelopmentCa, scheme: str = "https", host: str = "127.0.0.1", headers: Mapping[str, str] | None = None
) -> int:
    """The status of a call to a server of the fleet, which asks for a certificate."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWER)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def run() -> int:
        certificate, key = ca.pair("fleet")
        tls = server_context(Path(certificate), Path(key), ca.ca) if scheme == "https" else None
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        async with server, httpx.AsyncClient(transport=fleet_transport(), trust_env=False, timeout=30) as client:
            return (await client.get(f"{scheme}://{host}:{port}/", headers=headers)).status_code

    return asyncio.run(run())


def test_calls_show_the_certificate_and_verify_the_server(tmp_path: Path) -> None:
    ca = DevelopmentCa(tmp_path / "ca").issue("fleet", "127.0.0.1", client=True)
    set_process_tls(own(ca))
    assert called(ca) == 200
    foreign = DevelopmentCa(tmp_path / "foreign").issue("fleet", "127.0.0.1", client=True)
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        called(foreign)


def test_one_name_stands_for_all_addresses(tmp_path: Path) -> None:
    ca = DevelopmentCa(tmp_path / "ca").issue("fleet", "fleet.internal", client=True)
    set_process_tls(own(ca))
    with pytest.raises(httpx.ConnectError, match="mismatch"):
        called(ca)
    set_process_tls(own(ca, server_name="fleet.internal"))
    assert called(ca) == 200


def test_without_authorities_nothing_is_called_over_tls(tmp_path: Path) -> None:
    ca = DevelopmentCa(tmp_path / "ca").issue("fleet", "127.0.0.1", client=True)
    assert process_tls().client is None
    with pytest.raises(httpx.ConnectError, match="this process has no --upstream-ca"):
        called(ca)
    assert called(ca, "http") == 200


def test_a_client_outlives_a_change_of_its_certificates(tmp_path: Path) -> None:
    first = DevelopmentCa(tmp_path / "first").issue("fleet", "127.0.0.1", client=True)
    second = DevelopmentCa(tmp_path / "second").issue("fleet", "127.0.0.1", client=True)
    for ca in (first, second, first):
        set_process_tls(own(ca))
        assert called(ca) == 200


@pytest.mark.parametrize("header", ["authorization", control_token.HEADER])
def test_what_proves_the_caller_never_leaves_in_plain_text(tmp_path: Path, header: str) -> None:
    ca = DevelopmentCa(tmp_path / "ca").issue("fleet", "127.0.0.1", client=True)
    proof = {header: "secret"}
    assert called(ca, "http", headers=proof) == 200
    set_process_tls(own(ca))
    with pytest.raises(httpx.ConnectError, match="the fleet requires TLS"):
        called(ca, "http", headers=proof)
    assert called(ca, headers=proof) == 200
    # Servers at addresses are plain, and get no credential.
    assert called(ca, "http") == 200
    set_process_tls(own(ca), permissive=True)
    assert called(ca, "http", headers=proof) == 200
