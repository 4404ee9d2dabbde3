"""Plan steps for settings that this release checks and does not use. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from isochrone.control.fleet.planning.steps import IGNORE, Step
from isochrone.control.fleet.settings.sections import Gateway, Observability, Security
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.settings.sections import Section

#: Keys of a gateway that are checked and not used yet.
_OF_GATEWAY = ("tier",)
_DETAIL = "has no effect in this release"


def ineffective(fleet: Fleet) -> Iterator[Step]:
    for key, section, default in (
        ("security", fleet.security, Security()),
        ("observability", fleet.observability, Observability()),
    ):
        for name in _made(section, default, tuple(type(section).model_fields)):
            meaning = ": the fleet's ports speak plain HTTP and gRPC" if (key, name) == ("security", "tls") else ""
            meaning = meaning or (": no caller is asked for a token" if key == "security" else "")
            yield Step(IGNORE, "fleet", f"{key}.{name}", _DETAIL + meaning)
    for group, gateway in fleet.gateways.items():
        for name in _made(gateway, Gateway(), _OF_GATEWAY):
            yield Step(IGNORE, "gateway", group, f"{name} {_DETAIL}")


def _made(section: Section, default: Section, names: tuple[str, ...]) -> Iterator[str]:
    return (name for name in names if getattr(section, name) != getattr(default, name))
