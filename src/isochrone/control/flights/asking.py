"""Asks gateways, and then the workers they sent a request to, for their flight records. With deadlines; never retries.

A process that does not answer costs its records, not the answer: the explanation says what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

import httpx
import msgspec

from isochrone.control.state.process_records import NO_FIELDS
from isochrone.observe.flights.explaining.explain import Explanation, explain
from isochrone.observe.flights.messages import GATEWAY, WORKER, FlightPage, FlightPages, GatewayFlight
from isochrone.wire.tls.fleet_transport import fleet_transport

#: Seconds for one process, and processes asked at once.
_SECONDS = 3.0
_AT_ONCE = 32
#: Ids of one request that workers are asked for.
_MOST_IDS = 4


class Target(NamedTuple):
    """A process to ask: the address of its metrics port."""

    role: str
    address: str
    name: str = ""
    #: host:port as gateways know a worker; "": not known.
    endpoint: str = ""
    #: Not a server at an address, which could use a credential of the fleet.
    is_of_fleet: bool = True
    tls: bool = False


class Asked(NamedTuple):
    """What was found, and which processes could not be asked, with the reason."""

    pages: list[FlightPage]
    problems: list[str]

    @property
    def kept_seconds(self) -> float:
        """How far the shortest ring of a gateway, or else of a worker, reaches back."""
        rings = [page.kept_ns for page in self.pages if page.role == GATEWAY] or [each.kept_ns for each in self.pages]
        return min(rings, default=0) / 1e9


class Why(msgspec.Struct, frozen=True):
    """The answer to ``GET /v1/why/ID``."""

    cause: str
    lines: tuple[str, ...]
    explanation: Explanation
    records: tuple[FlightPage, ...]


async def ask(request_id: str, targets: Sequence[Target], own_fields: Mapping[str, str] = NO_FIELDS) -> Asked:
    """Gateways first: they know under which ids, and by which workers, the request is to be found. ``own_fields``:
    headers that prove to processes of the fleet who asks."""
    async with httpx.AsyncClient(timeout=_SECONDS, transport=fleet_transport(), trust_env=False) as client:
        gate = asyncio.Semaphore(_AT_ONCE)
        problems: list[str] = []

        async def read(target: Target, named: str) -> list[FlightPage]:
            async with gate:
                return await _read(client, target, named, problems, own_fields if target.is_of_fleet else NO_FIELDS)

        gateways = [target for target in targets if target.role == GATEWAY]
        pages = _flat(await asyncio.gather(*(read(target, request_id) for target in gateways)))
        flights = [each for page in pages for each in page.flights if isinstance(each, GatewayFlight)]
        ids = list(dict.fromkeys((request_id, *(name for each in flights for name in (each.id, *each.further_ids)))))
        endpoints = {attempt.endpoint for each in flights for attempt in each.attempts}
        workers = [target for target in targets if target.role == WORKER]
        known = [target for target in workers if target.endpoint in endpoints]
        asked = [(target, named) for target in known or workers for named in ids[:_MOST_IDS] if named]
        found = _flat(await asyncio.gather(*(read(target, named) for target, named in asked)))
    return Asked([*pages, *_without_repeated(found)], list(dict.fromkeys(problems)))


def answer(request_id: str, asked: Asked) -> Why | None:
    """None: no process remembers the request."""
    found = explain(request_id, asked.pages)
    if found is None:
        return None
    lines = (*found.lines, *(f"not asked: {problem}" for problem in asked.problems))
    return Why(found.cause, lines, found, tuple(page for page in asked.pages if page.flights))


def unknown(request_id: str, asked: Asked) -> str:
    """Why there is no explanation."""
    problems = "".join(f"; not asked: {problem}" for problem in asked.problems)
    if not asked.pages:
        return f"no process could be asked{problems}"
    return f"no process remembers request {request_id!r}: requests are kept for {asked.kept_seconds:.3g} s{problems}"


async def _read(
    client: httpx.AsyncClient, target: Target, named: str, problems: list[str], fields: Mapping[str, str]
) -> list[FlightPage]:
    shown = target.name or target.address
    try:
        url = f"{'https' if target.tls else 'http'}://{target.address}/v1/flights/{quote(named, safe='')}"
        response = await client.get(url, headers=fields)
        if response.status_code != 200:
            problems.append(f"{shown}: {_error_of(response)}")
            return []
        pages = msgspec.json.decode(response.content, type=FlightPages).pages
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        problems.append(f"{shown}: {type(error).__name__} {error}".rstrip())
        return []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        problems.append(f"{shown}: it did not answer as a metrics port of a worker or gateway does")
        return []
    return [msgspec.structs.replace(page, name=target.name, endpoint=target.endpoint) for page in pages]


def _error_of(response: httpx.Response) -> str:
    try:
        return str(msgspec.json.decode(response.content)["error"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return f"status {response.status_code}"


def _flat(answers: Iterable[list[FlightPage]]) -> list[FlightPage]:
    return [page for pages in answers for page in pages]


def _without_repeated(pages: Iterable[FlightPage]) -> list[FlightPage]:
    """A worker that was asked for two ids of one request may answer both times with the same flights, or with none."""
    best: dict[tuple[str, int], FlightPage] = {}
    for page in pages:
        key = (page.name or page.endpoint, page.pid)
        if key not in best or len(page.flights) > len(best[key].flights):
            best[key] = page
    return list(best.values())
