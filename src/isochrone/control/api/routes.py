"""All operations of the API, in one list. Handlers only translate between HTTP and ``requests`` or ``answers``."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from isochrone.control.api.answers.figures import figures_answer
from isochrone.control.api.answers.metrics_page import metrics_page
from isochrone.control.api.answers.placement import explained, planned, stated
from isochrone.control.api.answers.scrape_targets import TARGETS_PATH
from isochrone.control.api.answers.slo import slo_answer
from isochrone.control.api.answers.status import fleet_status
from isochrone.control.api.checked_versions import check_file, check_rollout
from isochrone.control.api.messages import (
    AbortRequest,
    Done,
    Events,
    FiguresAnswer,
    FleetRequest,
    Health,
    PlacementAnswer,
    PlacementExplanation,
    PlanAnswer,
    PlanStep,
    RestoreAnswer,
    RestoredModel,
    RestoreRequest,
    RightsAnswer,
    RolloutRequest,
    Rollouts,
    ScaleRequest,
    ScrapeTarget,
    SloAnswer,
    Status,
    WhatIfRequest,
)
from isochrone.control.api.operation import (
    Operation,
    answer,
    body_of,
    count,
    flag,
    is_local,
    share,
    while_asked,
    who_asks,
)
from isochrone.control.api.recording import actor_of, count_refusal
from isochrone.control.api.service import ControlService
from isochrone.control.api.streams import event_changes, event_message, event_stream, rollout_changes
from isochrone.control.figures.objectives import LARGEST_OBJECTIVE, OBJECTIVE
from isochrone.control.fleet.reading.cautions import cautions
from isochrone.control.fleet.reading.file import FleetFile, lost_versions, read_file
from isochrone.control.fleet.reading.local_ports import check_new_ports
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.fleet.reading.places import check_places
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.flights.asking import Why, ask, unknown
from isochrone.control.flights.asking import answer as explained_flight
from isochrone.control.flights.targets import flight_targets
from isochrone.control.placement.fleet_inputs import PlacementInputs, of_records
from isochrone.control.recovery.rebuild import Rebuilt, restore_epoch
from isochrone.control.requests import fleet, processes, rollouts
from isochrone.control.requests.decisions import Decision, RequestContext
from isochrone.control.requests.fleet import Applied
from isochrone.control.state.records import FleetRecord
from isochrone.control.state.rollout_records import RolloutRecord
from isochrone.control.state.view import View
from isochrone.control.what_if.answers import WhatIfAnswer
from isochrone.control.what_if.situation import Situation
from isochrone.errors import InvalidArgument, NotFound, Unauthenticated
from isochrone.secure.access.permissions import FLEET_ADMIN, FLEET_CHANGE, FLEET_READ, HEALTH, METRICS, RECORDS
from isochrone.secure.oidc.login.resource_metadata import PATH as METADATA_PATH
from isochrone.secure.oidc.login.resource_metadata import write_metadata

_MOST_EVENTS = 1000
#: A day: the history has no more.
_MOST_SECONDS = 86_400
_MOST_REVISION = 2**63 - 1


async def _health(service: ControlService, request: Request) -> Response:
    return answer(Health(True, service.view().leader, service.store_state()))


async def _rights(service: ControlService, request: Request) -> Response:
    rights = service.rights
    if rights.needs_token and "authorization" in request.headers and not rights.name_of(request.headers):
        # Nothing is refused, but the answer says whether a token is right.
        guessed = Unauthenticated("the token is not known")
        count_refusal(service.audit, actor_of(request, rights), FLEET_CHANGE, guessed)
    return answer(RightsAnswer(rights.needs_token, rights.may_change(request.headers)))


async def _login(service: ControlService, request: Request) -> Response:
    provider = service.rights.login_provider()
    if provider is None:
        raise NotFound("this controller's access file has no provider with a client_id, or several")
    return answer(write_metadata(provider, f"{request.url.scheme}://{request.url.netloc}"))


async def _status(service: ControlService, request: Request) -> Response:
    return answer(fleet_status(service.view(), service.store_state()))


async def _metrics(service: ControlService, request: Request) -> Response:
    # Not on the loop, since a thousand workers take a while; so of a copy, since the loop changes the entries.
    view = View(service.keys, dict(service.mirror.entries))
    accept = request.headers.get("accept", "")
    body, content_type = await asyncio.to_thread(metrics_page, view, service.store_state(), accept)
    return Response(body, headers={"content-type": content_type})


async def _scrape_targets(service: ControlService, request: Request) -> Response:
    return answer(service.scrape_targets.listed(service.view()))


async def _figures(service: ControlService, request: Request) -> Response:
    seconds = count(request, "seconds", 60, _MOST_SECONDS)
    model = request.query_params.get("model", "")
    history = service.history
    frames = history.frames(seconds) if seconds else ()
    latest, since = history.latest(), history.since
    # A day of many models takes a while: not on the loop. Frames never change.
    body = await asyncio.to_thread(lambda: msgspec.json.encode(figures_answer(latest, frames, since, model)))
    return Response(body, media_type="application/json")


async def _slo(service: ControlService, request: Request) -> Response:
    objective = share(request, "objective", OBJECTIVE, LARGEST_OBJECTIVE)
    history = service.history
    latest, began = history.latest(), history.since or 0
    at = latest.at if latest is not None else int(time.time())
    # Not on the loop, since a day of many models takes a while; so of a copy, since the loop changes the entries.
    view = View(service.keys, dict(service.mirror.entries))
    return answer(await asyncio.to_thread(slo_answer, view, history.budget_frames(), objective, at, began))


async def _why(service: ControlService, request: Request) -> Response:
    request_id = request.path_params["request_id"]
    asked = await ask(request_id, flight_targets(service.view()), service.own_fields)
    found = explained_flight(request_id, asked)
    if found is None:
        raise NotFound(unknown(request_id, asked))
    return answer(found)


async def _read_fleet(service: ControlService, request: Request) -> Response:
    record = service.view().fleet
    if record is None:
        raise NotFound("no fleet.yaml has been applied yet; run 'isochrone apply FILE'")
    return answer(record)


async def _write_fleet(service: ControlService, request: Request) -> Response:
    body = await body_of(request, FleetRequest)
    dry_run = flag(request, "dry_run")
    known = service.view().fleet
    # Looks into the repositories, which may be far: not on the loop.
    file = await asyncio.to_thread(_read_file, body, is_local(request), known)
    record, served = await service.preview(lambda view: (view.fleet, view.assignments))
    lost = await asyncio.to_thread(lost_versions, file, record, served)
    warned = await asyncio.to_thread(cautions, file, record, served)
    await asyncio.to_thread(check_file, service.view(), file, served)
    if is_local(request):
        # Not for remote callers: they could find out which ports of this machine are in use.
        check_new_ports(file, record, body.file)

    def decide(view: View, context: RequestContext) -> Decision[Applied]:
        # A dry run shows what would be taken away, and needs no agreement.
        return fleet.apply_fleet(view, file, context, body.generation, dry_run or body.retire, lost, cautions=warned)

    if not dry_run:
        return _planned(await service.change(who_asks(request), decide))
    # The view's generation: a fleet record that cannot be read has one all the same.
    before, applied = await service.preview(
        lambda view: (view.generation, decide(view, RequestContext("", 0.0, "")).answer)
    )
    return answer(PlanAnswer(before, False, _steps(applied)))


def _read_file(body: FleetRequest, local: bool, applied: FleetRecord | None) -> FleetFile:
    directory = Path(body.directory)
    if not directory.is_absolute():
        raise InvalidArgument(f"directory: expected an absolute path, given '{body.directory}'")

    def check(fleet: Fleet) -> None:
        if not local:
            before = (fleet_of(applied.spec), Path(applied.directory)) if applied is not None else None
            check_places(before, fleet, directory)

    try:
        return read_file(body.text, body.file, directory, check)
    except (OSError, ValueError) as error:
        # Of paths that the system rejects: longer than any, or with a NUL.
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidArgument(f"{body.file[:200]}: the paths in it cannot be looked up: {reason}") from None


def _planned(applied: Applied) -> Response:
    return answer(PlanAnswer(applied.record.generation, True, _steps(applied)))


def _steps(applied: Applied) -> tuple[PlanStep, ...]:
    return tuple(PlanStep(step.action, step.kind, step.name, step.detail) for step in applied.steps)


async def _list_rollouts(service: ControlService, request: Request) -> Response:
    return answer(Rollouts(tuple(service.view().rollouts)))


async def _read_rollout(service: ControlService, request: Request) -> Response:
    return answer(rollouts.find_rollout(service.view(), request.path_params["id"]))


async def _watch_rollout(service: ControlService, request: Request) -> Response:
    identity = request.path_params["id"]
    rollouts.find_rollout(service.view(), identity)
    return event_stream(rollout_changes(service, identity))


async def _start_rollout(service: ControlService, request: Request) -> Response:
    body = await body_of(request, RolloutRequest)
    view = service.view()
    if (fleet := view.fleet) is not None:
        # Looks into the repositories, which may be far: not on the loop.
        await asyncio.to_thread(check_rollout, view, fleet, body.changes)

    def decide(view: View, context: RequestContext) -> Decision[RolloutRecord]:
        return rollouts.start_rollout(
            view, body.changes, context, cutover=body.cutover, canary=body.canary, compare=body.compare
        )

    return answer(await service.change(who_asks(request, body.by), decide), 201)


async def _abort(service: ControlService, request: Request) -> Response:
    body = await body_of(request, AbortRequest)

    def decide(view: View, context: RequestContext) -> Decision[RolloutRecord]:
        return rollouts.abort(view, request.path_params["id"], body.reason, context)

    return answer(await service.change(who_asks(request), decide))


async def _promote(service: ControlService, request: Request) -> Response:
    identity = request.path_params["id"]
    done = await service.change(who_asks(request), lambda view, context: rollouts.promote(view, identity, context))
    return answer(done)


async def _rollback(service: ControlService, request: Request) -> Response:
    model = request.path_params["model"]
    done = await service.change(who_asks(request), lambda view, context: rollouts.rollback(view, model, context))
    return answer(done, 201)


async def _scale(service: ControlService, request: Request) -> Response:
    body = await body_of(request, ScaleRequest)

    def decide(view: View, context: RequestContext) -> Decision[Applied]:
        return fleet.scale(view, request.path_params["pool"], body.workers, context, body.retire)

    return _planned(await service.change(who_asks(request), decide))


async def _drain(service: ControlService, request: Request) -> Response:
    name = request.path_params["name"]
    done = await service.change(who_asks(request), lambda view, context: processes.drain(view, name, context))
    return answer(Done(done))


async def _undrain(service: ControlService, request: Request) -> Response:
    name = request.path_params["name"]
    done = await service.change(who_asks(request), lambda view, context: processes.undrain(view, name, context))
    return answer(Done(done))


async def _forget_gateway(service: ControlService, request: Request) -> Response:
    name = request.path_params["name"]
    done = await service.change(who_asks(request), lambda view, context: processes.forget_gateway(view, name, context))
    return answer(Done(done))


async def _restore_epoch(service: ControlService, request: Request) -> Response:
    body = await body_of(request, RestoreRequest)

    def decide(view: View, context: RequestContext) -> Decision[Rebuilt]:
        return restore_epoch(view, context, body.digest, body.without)

    if flag(request, "dry_run"):
        who = who_asks(request)
        rebuilt = await service.preview(lambda view: decide(view, RequestContext(who, 0.0, "")).answer, by_epoch=False)
        return answer(_restored(rebuilt, False))
    return answer(_restored(await service.change(who_asks(request), decide, by_epoch=False), True))


def _restored(rebuilt: Rebuilt, written: bool) -> RestoreAnswer:
    models = tuple(
        RestoredModel(name, model.version, model.previous, model.canary, model.pools)
        for name, model in sorted(rebuilt.epoch.models.items())
    )
    return RestoreAnswer(rebuilt.epoch.epoch, written, rebuilt.source, models, rebuilt.notes, rebuilt.digest)


def _placement_inputs(service: ControlService, request: Request) -> PlacementInputs:
    given = request.query_params.getlist
    return of_records(service.view(), stated(given("rate"), given("run_ms"), given("without")))


async def _plan_placement(service: ControlService, request: Request) -> Response:
    inputs = _placement_inputs(service, request)
    # Seconds for thousands of models: not on the loop.
    return answer(await asyncio.to_thread(planned, inputs))


async def _explain_placement(service: ControlService, request: Request) -> Response:
    inputs = _placement_inputs(service, request)
    return answer(await asyncio.to_thread(explained, inputs, request.path_params["model"]))


async def _situation(service: ControlService, request: Request) -> Response:
    return answer(await service.situation())


async def _what_if(service: ControlService, request: Request) -> Response:
    body = await body_of(request, WhatIfRequest)
    return answer(await while_asked(request, service.what_if(body.questions, body.seed, body.seconds)))


async def _events(service: ControlService, request: Request) -> Response:
    after = count(request, "after", 0, _MOST_REVISION)
    limit = count(request, "limit", 100, _MOST_EVENTS)
    following = "after" in request.query_params
    events = [event_message(revision, record) for revision, record in service.view().events(after)]
    if flag(request, "follow"):
        earlier = [] if following else events[: max(0, len(events) - limit)]
        return event_stream(event_changes(service, earlier[-1].revision if earlier else after))
    # Events of one revision were written together: a page that ended between them would lose the rest.
    kept = events[:limit] if following else events[max(0, len(events) - limit) :]
    if following and kept:
        kept = [each for each in events if each.revision <= kept[-1].revision]
    return answer(Events(tuple(kept)))


_get, _post = partial(Operation, "GET", permission=FLEET_READ), partial(Operation, "POST")
_open = partial(Operation, "GET", permission=HEALTH)
_put, _delete = partial(Operation, "PUT"), partial(Operation, "DELETE")

_STATED_FIGURES = {
    "rate": ("string", "MODEL=REQUESTS_PER_SECOND, in place of a measured rate. May be repeated."),
    "run_ms": ("string", "MODEL=MILLISECONDS of one run, in place of a measured one. May be repeated."),
    "without": ("string", "A worker that counts as lost. May be repeated."),
}

OPERATIONS: tuple[Operation, ...] = (
    _get(
        "/v1/health",
        "The health of this controller, and whether it reaches the store.",
        _health,
        Health,
        permission=HEALTH,
    ),
    _get(
        "/v1/rights",
        "Whether changes need a token, and whether the request has it.",
        _rights,
        RightsAnswer,
        permission=HEALTH,
    ),
    _open(METADATA_PATH, "Where isochrone login gets tokens for this API (RFC 9728).", _login, None),
    _get("/v1/status", "The whole fleet at one moment.", _status, Status),
    _get("/metrics", "The fleet and this controller, for Prometheus.", _metrics, None, permission=METRICS),
    _get(
        TARGETS_PATH,
        "The metrics pages of workers and gateways, for the service discovery of Prometheus. A gateway that lost its"
        " registration stays listed until it leaves.",
        _scrape_targets,
        tuple[ScrapeTarget, ...],
        permission=METRICS,
    ),
    _get(
        "/v1/figures",
        "The figures of the fleet that this controller has collected: the latest second, and frames of a time before.",
        _figures,
        FiguresAnswer,
        query={
            "seconds": ("integer", f"The time of the frames, up to {_MOST_SECONDS}; default 60."),
            "model": ("string", "Only this model."),
        },
    ),
    _get(
        "/v1/slo",
        "The error budget of each model, and how fast it burns.",
        _slo,
        SloAnswer,
        query={"objective": ("number", f"Share of requests that must be good; default {OBJECTIVE}.")},
    ),
    _get("/v1/why/{request_id:path}", "Why one request took as long as it did.", _why, Why, permission=RECORDS),
    _get("/v1/fleet", "The fleet.yaml that was applied last.", _read_fleet, FleetRecord),
    _put(
        "/v1/fleet",
        "Apply a fleet.yaml; answers with the plan. Rejected if it takes away more than ``retire`` agrees to.",
        _write_fleet,
        PlanAnswer,
        FleetRequest,
        query={"dry_run": ("integer", "1: only return the plan.")},
        permission=FLEET_ADMIN,
        action="fleet.apply",
    ),
    _get("/v1/rollouts", "All rollouts, the newest last.", _list_rollouts, Rollouts),
    _post(
        "/v1/rollouts",
        "Start a rollout.",
        _start_rollout,
        RolloutRecord,
        RolloutRequest,
        status=201,
        action="rollout.start",
    ),
    _get("/v1/rollouts/{id}", "One rollout.", _read_rollout, RolloutRecord),
    _get(
        "/v1/rollouts/{id}/watch",
        "One rollout, each time it changes, until it is over.",
        _watch_rollout,
        None,
        streams=True,
    ),
    _post("/v1/rollouts/{id}/abort", "Abort a rollout.", _abort, RolloutRecord, AbortRequest, action="rollout.abort"),
    _post(
        "/v1/rollouts/{id}/promote",
        "End the canary: all traffic gets the new version.",
        _promote,
        RolloutRecord,
        action="rollout.promote",
    ),
    _post(
        "/v1/models/{model}/rollback",
        "Roll back to the previous version, with all models that changed together with it; abort a canary.",
        _rollback,
        RolloutRecord,
        status=201,
        action="rollout.rollback",
    ),
    _post(
        "/v1/pools/{pool}/scale",
        "Set the number of workers of a pool.",
        _scale,
        PlanAnswer,
        ScaleRequest,
        action="pool.scale",
    ),
    _post(
        "/v1/drains/{name}",
        "Drain a worker or gateway: it gets no new work.",
        _drain,
        Done,
        action="process.drain",
    ),
    _delete("/v1/drains/{name}", "End the drain of a worker or gateway.", _undrain, Done, action="process.undrain"),
    _delete(
        "/v1/known-gateways/{name}",
        "Forget a dead gateway: strict switches no longer wait for it.",
        _forget_gateway,
        Done,
        permission=FLEET_ADMIN,
        action="gateway.forget",
    ),
    _post(
        "/v1/epoch/restore",
        "Rebuild an epoch whose record and copy cannot be read from what gateways serve and from rollouts.",
        _restore_epoch,
        RestoreAnswer,
        RestoreRequest,
        query={"dry_run": ("integer", "1: report what would be written, write nothing.")},
        permission=FLEET_ADMIN,
        action="epoch.restore",
    ),
    _get(
        "/v1/placement",
        "A plan of model placement for the present fleet. Nothing is applied.",
        _plan_placement,
        PlacementAnswer,
        query=_STATED_FIGURES,
    ),
    _get(
        "/v1/placement/models/{model}",
        "Why a model is on some workers and not on others.",
        _explain_placement,
        PlacementExplanation,
        query=_STATED_FIGURES,
    ),
    _get(
        "/v1/what-if/situation",
        "The present fleet as the simulator gets it: workers, models, load and measured times.",
        _situation,
        Situation,
    ),
    _post(
        "/v1/what-if",
        "Simulate the present fleet and a changed one; answers with the figures of both. Nothing is changed.",
        _what_if,
        WhatIfAnswer,
        WhatIfRequest,
        permission=FLEET_READ,
    ),
    _get(
        "/v1/events",
        "The latest events, or those after a revision.",
        _events,
        Events,
        query={
            "after": ("integer", "A revision: the events written after it, the oldest first."),
            "limit": ("integer", f"How many, at most {_MOST_EVENTS}; default 100."),
            "follow": ("integer", "1: as an endless stream of server-sent events."),
        },
        streams=True,
    ),
)
