"""One request explained: asks the controller's flight recorder for a request by its id."""

from __future__ import annotations

from isochrone.console.pages.frame import framed, section


def request_page() -> None:
    with framed("/request"):
        section("One request", "request", "where it went, why, what it waited for")
