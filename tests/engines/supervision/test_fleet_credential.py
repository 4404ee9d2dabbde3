"""The supervisor's credential, and the processes that get it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from development_ca import DevelopmentCa
from isochrone.control.state.records import FleetRecord
from isochrone.engines.supervision.fleet_credential import FleetCredential
from isochrone.engines.supervision.fleet_tls import FleetTls
from isochrone.wire.tls.process_tls import process_tls, set_process_tls


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    set_process_tls(None)


class Followed:
    """A supervisor's two parts, by one fleet.yaml after the other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._generation = 0
        self._tls, self.credential = FleetTls(), FleetCredential()
        self._ca = DevelopmentCa(directory / "ca").issue("fleet", "127.0.0.1", client=True)
        key = directory / "fleet.key"
        key.write_text("00112233445566778899aabbccddeeff")
        key.chmod(0o600)
        (directory / "access.yaml").write_text("tokens: {}\n")
        (directory / "models").mkdir()

    def apply(self, mode: str) -> None:
        certificate, key = self._ca.pair("fleet")
        tls = {"cert": certificate, "key": key, "ca": str(self._ca.ca), "mode": mode} if mode else {}
        security = {"key": str(self._directory / "fleet.key"), "access": str(self._directory / "access.yaml")}
        self._generation += 1
        spec = {
            "name": "f",
            "repository": str(self._directory / "models"),
            "security": {**security, **({"tls": tls} if tls else {})},
        }
        record = FleetRecord(self._generation, "", spec, directory=str(self._directory))
        self._tls.follow(record)
        self.credential.follow(record)


def test_it_never_travels_in_plain_text_where_the_fleet_requires_tls(tmp_path: Path) -> None:
    fleet = Followed(tmp_path)
    towards = fleet.credential.towards
    assert towards(False) == b""
    for mode, plain in (("", True), ("required", False), ("permissive", True), ("required", False), ("", True)):
        fleet.apply(mode)
        assert bool(towards(False)) == plain, mode
        # By the fleet's file, callers of a gateway need no TLS: the supervisor is one of them.
        assert towards(False, is_plain_by_file=True).startswith(b"Bearer ")
        if mode:
            assert towards(True) == towards(False, is_plain_by_file=True)
    # Processes that still have TLS are called with the last files.
    assert process_tls().client is not None
    assert towards(True)
