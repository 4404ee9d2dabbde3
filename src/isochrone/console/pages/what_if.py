"""What if: the simulator on the present fleet, its answer beside today's figures."""

from __future__ import annotations

from isochrone.console.pages.frame import framed, section


def what_if_page() -> None:
    with framed("/what-if"):
        section("What if", "what-if", "the simulator on the present fleet; nothing is changed")
