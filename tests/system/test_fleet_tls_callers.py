"""A fleet whose certificates have one name and no addresses, and whose gateways ask callers for certificates of another
authority."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from development_ca import DevelopmentCa
from secure_fleet import BODY, PATH, SecureFleet


def status(port: int, context: ssl.SSLContext) -> int:
    """Of a request by the fleet's name."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="fleet.internal") as end,
    ):
        head = f"POST {PATH} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(BODY)}\r\n\r\n"
        end.sendall(head.encode() + BODY.encode())
        said = b""
        while part := end.recv(65536):
            said += part
    return int(said.split(b" ")[1])


def test_names_and_callers_of_another_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    fleet = SecureFleet(tmp_path, workers=1, gateways=1)
    fleet.ca.issue("fleet", "fleet.internal", client=True, uri="spiffe://plant/fleet")
    callers = DevelopmentCa(tmp_path / "callers").issue("alice", client=True, uri="spiffe://plant/alice")
    fleet.write(f"server_name: fleet.internal, client_ca: {callers.ca}")
    with fleet.run():
        alice = fleet.ca.context()
        alice.load_cert_chain(*callers.pair("alice"))
        assert status(fleet.front, alice) == 200
        with pytest.raises(ssl.SSLError, match="certificate required"):
            status(fleet.front, fleet.ca.context())
        # A caller is no process of the fleet.
        with pytest.raises(ssl.SSLError, match="unknown ca"):
            status(fleet.first_worker, alice)
        with pytest.raises(ssl.SSLError, match="unknown ca"):
            status(fleet.pages, alice)
        code, said = fleet.command("status")
        assert code == 0, said
        assert "gets no requests" not in said
        code, said = fleet.command("rollout", "list")
        assert code == 0, said
        assert "done" in said
