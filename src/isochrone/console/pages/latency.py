"""Latencies: every model's waterfall against its budget, and one model over time."""

from __future__ import annotations

from nicegui import ui

from isochrone.console.pages.frame import framed, section


def latency_page() -> None:
    with framed("/latency"):
        section("Waterfall", "waterfall", "mean request of the last 10 seconds, stage by stage, against its deadline")
        ui.element("div").props('data-live="chooser"').classes("chooser")
        section("Percentiles", "percentiles", "milliseconds, of answered requests")
        section("Heat map", "heat-map", "answered requests by duration; stronger is more")
