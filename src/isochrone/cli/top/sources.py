"""Where the samples come from: the controller of a fleet with its metrics pages, or the page of one process."""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol
from urllib.parse import urlsplit

from isochrone.cli.api_client import ApiClient, ApiFailed, CallerToken
from isochrone.cli.top.fleet_samples import fleet_sample
from isochrone.cli.top.page_samples import page_sample
from isochrone.cli.top.pages import PageFailed, Pages
from isochrone.cli.top.samples import Sample
from isochrone.control.api.messages import GatewayStatus, Status, WorkerStatus


class Source(Protocol):
    """Gives samples; ``close`` it on the thread that takes them."""

    def sample(self) -> Sample:
        """The figures since the last call. Raises ``ApiFailed``."""
        ...

    def __enter__(self) -> Source: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class FleetSource:
    """A whole fleet: its status from a controller, and the pages of its processes."""

    def __init__(self, api: str) -> None:
        self._open = ExitStack()
        self._client = self._open.enter_context(ApiClient(api))
        self._pages = self._open.enter_context(Pages(self._client.token))

    def __enter__(self) -> FleetSource:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def sample(self) -> Sample:
        status = self._client.get("/v1/status", Status)
        urls = {each.name: _page_of(each) for each in status.gateways if each.metrics}
        urls |= {each.name: _page_of(each) for each in status.workers if each.metrics}
        strangers = {each.name for each in status.workers if each.kind != "isochrone"}
        pairs = self._pages.read_all(urls, strangers)
        return fleet_sample(status, pairs, time.time())


def _page_of(process: GatewayStatus | WorkerStatus) -> str:
    return f"{'https' if process.tls else 'http'}://{process.metrics}/metrics"


class PageSource:
    """One worker or gateway, by the URL of its metrics page."""

    def __init__(self, url: str) -> None:
        self._url = page_url(url)
        self._pages = Pages(CallerToken(""))

    def __enter__(self) -> PageSource:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pages.__exit__(kind, error, at)

    def sample(self) -> Sample:
        try:
            pair = self._pages.read(self._url)
        except PageFailed as error:
            raise ApiFailed(
                f"{self._url} cannot be read ({error}); expected the metrics port of a worker or gateway (8002)"
            ) from None
        if not pair[1].sums:
            raise ApiFailed(f"{self._url} has no figures of a worker or gateway; is it a metrics port of one?")
        return page_sample(self._url, pair, time.time())


def page_url(url: str) -> str:
    """``HOST:PORT`` and ``http://HOST:PORT`` become the address of the metrics page. Raises ``ApiFailed``."""
    full = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(full)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ApiFailed(f"URL: expected http://HOST:PORT of a metrics port, given '{url}'")
    return full if parts.path.strip("/") else f"{full.rstrip('/')}/metrics"
