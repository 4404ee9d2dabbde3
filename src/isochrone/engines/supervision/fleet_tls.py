"""The supervisor's certificate towards the processes that it probes: that of its fleet, by the record that applies."""

from __future__ import annotations

from pathlib import Path

import structlog

from isochrone.control.fleet.derived.locations import absolute
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.settings.security_spec import Tls
from isochrone.control.state.records import FleetRecord
from isochrone.errors import IsochroneError
from isochrone.wire.tls.client_tls import ClientTls
from isochrone.wire.tls.process_tls import set_process_tls

log = structlog.get_logger(__name__)


class FleetTls:
    """Of one supervisor. When a fleet gives up TLS, processes that still have it are probed with the last files."""

    def __init__(self) -> None:
        self._generation = 0
        self._tls = Tls()
        self._client: ClientTls | None = None

    def follow(self, record: FleetRecord | None) -> None:
        """These files are used from now on, as they are now."""
        if record is not None and record.generation != self._generation:
            self._generation = record.generation
            self._take(fleet_of(record.spec).security.tls, Path(record.directory))
        elif self._client is not None:
            self._client.refresh()

    def _take(self, tls: Tls, directory: Path) -> None:
        if tls == self._tls:
            return
        if tls.ca is None or tls.cert is None or tls.key is None:
            # The fleet gives up TLS: its new processes are plain.
            self._tls = tls
            set_process_tls(self._client, permissive=True)
            return
        ca, certificate, key = (absolute(file, directory) for file in (tls.ca, tls.cert, tls.key))
        try:
            self._client = ClientTls(Path(ca), Path(certificate), Path(key), tls.server_name)
        except IsochroneError as error:
            log.error("the fleet's certificates cannot be read: its processes cannot be probed", error=str(error))
            return
        self._tls = tls
        # Where the fleet requires TLS, processes that have none yet are probed, too, but without the credential.
        set_process_tls(self._client, permissive=tls.mode == "permissive")
