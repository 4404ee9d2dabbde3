"""The rights of an access file: every operation, reading too, needs a permission that the caller's roles give."""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.control.api.callers.rights import Rights
from isochrone.errors import IsochroneError
from isochrone.secure.access.grants import Grant
from isochrone.secure.access.identity import ANONYMOUS
from isochrone.secure.access.keeper import AccessKeeper
from isochrone.secure.access.permissions import FLEET_CHANGE, HEALTH
from isochrone.secure.oidc.settings import Provider


class AccessRights(Rights):
    def __init__(self, keeper: AccessKeeper) -> None:
        super().__init__()
        self.keeper = keeper

    @property
    def needs_token(self) -> bool:
        return True

    async def decided(self, headers: Mapping[str, str]) -> None:
        await self.keeper.decided(self._grant(headers))

    def may_change(self, headers: Mapping[str, str]) -> bool:
        try:
            self.require(headers, FLEET_CHANGE)
        except IsochroneError:
            return False
        return True

    def name_of(self, headers: Mapping[str, str]) -> str:
        identity = self._grant(headers).identity
        return "" if identity is ANONYMOUS else identity.name

    def login_provider(self) -> Provider | None:
        found = [*self.login_providers().values()]
        return found[0] if len(found) == 1 else None

    def login_providers(self) -> dict[str, Provider]:
        """By their names in the access file: the providers that people can log in at."""
        return {name: each for name, each in self.keeper.access.providers.items() if each.client_id}

    def require(self, headers: Mapping[str, str], permission: str) -> None:
        if permission != HEALTH:
            self._grant(headers).require(permission)

    def _grant(self, headers: Mapping[str, str]) -> Grant:
        return self.keeper.grant(headers.get("authorization", "").encode("utf-8", "replace"))
