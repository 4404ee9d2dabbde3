"""The first page: the whole fleet at a glance."""

from __future__ import annotations

from nicegui import ui

from isochrone.console.pages.frame import framed, section


def fleet_page() -> None:
    with framed("/"):
        ui.element("div").props('data-live="summary"').classes("summary")
        section("Workers", "fleet-map", "by tier and pool; colored by load")
        section("Models", "models", "figures of the last 10 seconds")
        section("Gateways", "gateways")
