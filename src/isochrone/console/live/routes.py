"""The routes of the live part: the stream, and a model's history."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from isochrone.console.live.aggregation import Aggregation
from isochrone.console.live.stream import LiveStream
from isochrone.console.places import HISTORY, LIVE
from isochrone.control.api.operation import count


def live_routes(aggregation: Aggregation) -> list[Route]:
    async def live(request: Request) -> Response:
        return LiveStream(aggregation)

    async def history(request: Request) -> Response:
        seconds = count(request, "seconds", 300, 86_400)
        body = await aggregation.model_history(request.query_params.get("model", ""), seconds)
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    return [Route(LIVE, live, methods=["GET"]), Route(HISTORY, history, methods=["GET"])]
