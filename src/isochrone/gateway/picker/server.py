"""The picker process: a gateway whose port takes the calls of Envoy, and a port for health checks."""

from __future__ import annotations

from typing import ClassVar

from isochrone.gateway.picker.application import HealthApplication, PickerApplication
from isochrone.gateway.picker.picker import Picker
from isochrone.gateway.server.server import GatewayServer
from isochrone.gateway.server.settings import GatewaySettings
from isochrone.wire.exchange import Application

#: Of one connection, beyond its calls. All clients of an Envoy share its connection: what each of them gives up is a
#: reset there, and a limit as for one client would cut all of them off.
MAX_CONTROL_FRAMES_PER_SECOND = 50_000


class PickerServer(GatewayServer):
    """One picker process."""

    service: ClassVar[str] = "picker"

    def __init__(self, settings: GatewaySettings, health_port: int | None) -> None:
        """``health_port``: None: health checks use the picker's own port; 0: any free one."""
        super().__init__(settings)
        self._picker = Picker(self.gateway)
        self._health_port = health_port

    def make_application(self) -> Application:
        return PickerApplication(self._picker)

    async def listen_further(self) -> None:
        if self._health_port is not None:
            await self.listen("health", self._health_port, HealthApplication(self._picker))
