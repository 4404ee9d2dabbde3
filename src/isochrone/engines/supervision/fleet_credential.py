"""The supervisor's credential towards the processes that it probes, where the fleet's workers check their callers.

It is that of a controller, derived from the fleet's key by the record that applies.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from isochrone.control.fleet.derived.locations import absolute
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.settings.security_spec import Security
from isochrone.control.state.records import FleetRecord
from isochrone.errors import IsochroneError
from isochrone.secure.access.internal import InternalCallers
from isochrone.secure.fleet_key import read_fleet_key
from isochrone.wire.tls.process_tls import refuses

log = structlog.get_logger(__name__)


class FleetCredential:
    """Of one supervisor. The last one is kept: processes of an earlier file may still check it."""

    def __init__(self) -> None:
        self._generation = 0
        #: b"": the fleet has no key.
        self._value = b""

    def towards(self, tls: bool, *, is_plain_by_file: bool = False) -> bytes:
        """A value of ``Authorization`` for a process that has TLS or not; b"": none, where it would travel in plain
        text in a fleet that requires TLS. ``is_plain_by_file``: the fleet's file says that this port has no TLS."""
        return self._value if is_plain_by_file or not refuses(tls) else b""

    def follow(self, record: FleetRecord | None) -> None:
        if record is not None and record.generation != self._generation:
            self._generation = record.generation
            self._take(fleet_of(record.spec).security, Path(record.directory))

    def _take(self, security: Security, directory: Path) -> None:
        if security.key is None:
            return
        try:
            key = read_fleet_key(absolute(security.key, directory), "security.key")
        except IsochroneError as error:
            log.error("the fleet's key cannot be read: its processes cannot be probed", error=str(error))
            return
        if key is not None:
            self._value = f"Bearer {InternalCallers(key).controller_token}".encode()
