"""What if: the simulator on the present fleet, its answer beside today's figures."""

from __future__ import annotations

from nicegui import ui

from isochrone.console.pages.frame import framed, section
from isochrone.gateway.policies import NAMES


def what_if_page() -> None:
    with framed("/what-if"):
        ui.element("datalist").props(f'data-policies="{" ".join(NAMES)}"')
        section("What if", "what-if", "the simulator on the present fleet; nothing is changed")
