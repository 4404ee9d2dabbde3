"""All pages, registered with NiceGUI; the only module that starts and stops NiceGUI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nicegui import Client, ui
from nicegui import app as pages_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from isochrone.console.pages.events import events_page
from isochrone.console.pages.fleet import fleet_page
from isochrone.console.pages.frame import head
from isochrone.console.pages.latency import latency_page
from isochrone.console.pages.request import request_page
from isochrone.console.pages.rollouts import rollouts_page
from isochrone.console.pages.what_if import what_if_page
from isochrone.console.places import MOUNT, PAGE_PATHS
from isochrone.control.api.service import ControlService

#: Seconds that a browser has to come back to its page; then its page on this side is forgotten.
_RECONNECT = 30.0
#: Messages to one page that are kept for that: dialogs and forms send few.
_MESSAGES = 50
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0a58b5"/>'
    '<path d="M8 23V9M16 23V13M24 23v-8" stroke="#fff" stroke-width="4" stroke-linecap="round"/></svg>'
)


@asynccontextmanager
async def running_pages(service: ControlService) -> AsyncIterator[ASGIApp]:
    """NiceGUI with all pages, in this event loop. Once per process: NiceGUI has one application."""
    ui.add_head_html(head(), shared=True)
    builders = (fleet_page, latency_page, rollouts_page(service), events_page, request_page, what_if_page)
    for path, build in zip(PAGE_PATHS, builders, strict=True):
        ui.page(path)(build)
    # NiceGUI's own would build a page for each.
    pages_app.exception_handler(404)(_not_found)
    # Only configures NiceGUI and starts it: the control API's own application has the route.
    around = Starlette()
    ui.run_with(
        around,  # type: ignore[arg-type]
        title="Isochrone",
        favicon=_ICON,
        mount_path=MOUNT,
        # Nothing is bound: no loop that looks for changes ten times a second.
        binding_refresh_interval=None,
        reconnect_timeout=_RECONNECT,
        message_history_length=_MESSAGES,
        tailwind=False,
        show_welcome_message=False,
    )
    async with around.router.lifespan_context(around):
        yield pages_app


def kept_pages() -> int:
    """Pages that NiceGUI keeps: those that browsers look at, and those that may come back."""
    return len(Client.instances)


async def _not_found(request: Request, error: Exception) -> Response:
    return PlainTextResponse("Not Found", 404)
