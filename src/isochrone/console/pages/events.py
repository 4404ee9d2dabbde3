"""The events of the fleet, the newest first, with a filter."""

from __future__ import annotations

from isochrone.console.pages.frame import framed, section


def events_page() -> None:
    with framed("/events"):
        section("Events", "events", "the newest first; isochrone events has all")
