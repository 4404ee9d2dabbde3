"""The requests and answers of the control API, as types. The OpenAPI document is generated from them.

Unknown keys of a request are rejected: a misspelt option must not be ignored silently.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from isochrone.control.state.process_records import ProcessRecord, RestartsRecord, XdsServerRecord
from isochrone.control.state.records import AccessFaultRecord, Fault, Split
from isochrone.control.state.rollout_records import RolloutRecord


class ErrorAnswer(msgspec.Struct, frozen=True):
    """An error: a message in one sentence, and a stable code of its kind."""

    error: str
    code: str


class StoreState(msgspec.Struct, frozen=True):
    """Whether this controller reaches the store. If not, answers are of that revision, and writes get 503."""

    url: str
    connected: bool
    error: str
    revision: int


class Health(msgspec.Struct, frozen=True):
    live: bool
    #: The leading controller; "": none.
    leader: str
    store: StoreState


class RightsAnswer(msgspec.Struct, frozen=True):
    """What the sender of this request may do."""

    #: Whether changes need a token here.
    needs_token: bool
    #: Whether this request could change the fleet.
    may_change: bool


class ScrapeTarget(msgspec.Struct, frozen=True):
    """Metrics pages and their labels, as Prometheus' HTTP service discovery reads them."""

    targets: tuple[str, ...]
    labels: dict[str, str]


class ModelStatus(msgspec.Struct, frozen=True):
    name: str
    #: The version that is served; "": none yet.
    version: str
    digest: str
    #: The version that a rollback goes to; "": none.
    previous: str
    canary: Split | None
    stages: tuple[str, ...]
    pools: tuple[str, ...]
    #: "serving", "degraded" (some gateways would not answer), "unserved" (none would), "not served" (nothing is
    #: committed), or the state of the rollout that changes it. As the gateways report it. "asleep": its pools have no
    #: worker, and the next request starts one.
    state: str
    #: The rollout that changes it; "": none.
    rollout: str
    #: Why a request would not be answered now; "": it would.
    fault: str = ""
    #: The gateway that reports it, if the epoch cannot be read; "": it can.
    according_to: str = ""
    #: Who signed the version, when, and from what; "": nobody had to.
    signed_by: str = ""


class WorkerStatus(msgspec.Struct, frozen=True):
    name: str
    address: str
    #: The address of its metrics page; "": unknown.
    metrics: str
    pool: str
    tier: str
    device: str
    kind: str
    draining: bool
    #: Since when it drains, in seconds since 1970; 0: it does not.
    draining_since: float
    #: Why gateways send it no requests; "": they do.
    fault: str = ""
    #: It gets no requests until the pool grows or loses a worker.
    standby: bool = False
    #: By model: the versions that it cannot load, and why.
    load_failures: dict[str, str] = {}
    #: Its metrics page is encrypted, and all its other ports.
    tls: bool = False


class PoolStatus(msgspec.Struct, frozen=True):
    """A pool whose number of workers the autoscaler sets."""

    name: str
    #: Its present size, without standby workers, and the bounds.
    workers: int
    least: int
    most: int
    #: Why, in one word, and the figures that led to it; "": the autoscaler has not set it yet, and the file counts.
    reason: str = ""
    detail: str = ""
    #: When it was set, in seconds since 1970; 0: never.
    at: float = 0.0


class GatewayStatus(msgspec.Struct, frozen=True):
    name: str
    address: str
    metrics: str
    #: False: its lease expired, but it may still serve; a strict switch waits for it.
    registered: bool
    #: The epoch that it serves; 0: none.
    epoch: int
    draining: bool
    draining_since: float
    #: By key of a record that it cannot read: why.
    faults: dict[str, str] = {}
    #: By name that does not resolve for it: why. It uses the last addresses.
    names: dict[str, str] = {}
    #: Its metrics page is encrypted.
    tls: bool = False


class Status(msgspec.Struct, frozen=True):
    """The whole fleet at one moment."""

    fleet: str
    #: Of the applied fleet.yaml; 0: none.
    generation: int
    epoch: int
    leader: str
    store: StoreState
    models: tuple[ModelStatus, ...]
    workers: tuple[WorkerStatus, ...]
    gateways: tuple[GatewayStatus, ...]
    #: Open rollouts.
    rollouts: tuple[RolloutRecord, ...]
    #: The latest aborted rollout, unless its models have changed since.
    aborted: RolloutRecord | None = None
    #: Generation of the fleet.yaml that the leader has reconciled.
    followed: int = 0
    #: Processes that died and do not serve yet.
    processes: tuple[ProcessRecord, ...] = ()
    #: Records of the store that cannot be read: they are ignored.
    faults: tuple[Fault, ...] = ()
    #: Controllers that serve xDS.
    xds_servers: tuple[XdsServerRecord, ...] = ()
    #: Pools whose number of workers the autoscaler sets.
    pools: tuple[PoolStatus, ...] = ()
    #: Why the leader does not follow its access file: the last rules stay in force. Null: it does, or there is none.
    access_fault: AccessFaultRecord | None = None
    #: Restarts that the applied file needs and that are not over, and the generation of the file that the supervisor
    #: has read. Null: no supervisor runs the processes.
    restarts: RestartsRecord | None = None


class FleetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fleet.yaml to apply."""

    text: str
    #: The directory that relative paths refer to: an absolute path on the controller's machine.
    directory: str
    #: Its name, for messages.
    file: str = "fleet.yaml"
    #: The generation that it replaces, from a plan; absent: any.
    generation: int | None = None
    #: What may be taken away (steps "retire" and "interrupt"), by kind and name as in the plan: "model detector",
    #: "pool cpu"; true: everything in the plan; absent: nothing.
    retire: tuple[str, ...] | bool = False


class PlanStep(msgspec.Struct, frozen=True):
    """One step of applying a file."""

    action: str
    #: "controller", "gateway", "pool", "model" or "fleet".
    kind: str
    name: str
    detail: str


class PlanAnswer(msgspec.Struct, frozen=True):
    #: After the file was applied; of a dry run, the one that it would replace.
    generation: int
    applied: bool
    steps: tuple[PlanStep, ...]


class RolloutRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rollout to start: versions by model, all at once."""

    changes: dict[str, str]
    #: "fast" or "strict"; absent: as in fleet.yaml.
    cutover: str | None = None
    #: A rule, true for the fleet's or the default one, false for none; absent: as in fleet.yaml.
    canary: dict[str, Any] | bool | None = None
    compare: dict[str, Any] | bool | None = None
    #: The requester; absent: the header x-isochrone-user.
    by: str = ""


class AbortRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str = ""


class ScaleRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: Workers that the pool should have.
    workers: int
    #: Whether it may lose its last working worker.
    retire: bool = False


class WhatIfRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question about the present fleet; several parts are one changed fleet."""

    #: ``lose=WORKER[,WORKER]``, ``load=FACTOR``, ``load=MODEL:FACTOR``, ``policy=NAME``, ``add=POOL:WORKERS``.
    questions: tuple[str, ...]
    seed: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 1
    #: Simulated seconds; absent: as many as there is time for.
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None


class RestoreRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to restore the epoch."""

    #: Of the preview; "": any.
    digest: str = ""
    #: Gateways whose offers are not needed.
    without: tuple[str, ...] = ()


class RestoredModel(msgspec.Struct, frozen=True):
    name: str
    version: str
    #: The version that a rollback goes to; "": none.
    previous: str
    canary: Split | None
    pools: tuple[str, ...]


class RestoreAnswer(msgspec.Struct, frozen=True):
    """A rebuilt epoch, in place of one whose record and copy cannot be read."""

    epoch: int
    #: False: a dry run, nothing was written.
    restored: bool
    #: The sources that it was rebuilt from.
    source: str
    models: tuple[RestoredModel, ...]
    #: What may be missing from it.
    notes: tuple[str, ...] = ()
    #: Of the whole epoch: a request with this digest restores exactly this epoch or fails.
    digest: str = ""


class PlacementMove(msgspec.Struct, frozen=True):
    """One load or unload of a plan of model placement."""

    #: "add" or "remove".
    action: str
    model: str
    worker: str
    #: "restore", "rule", "room", "memory", "cold", "hot", "overload", "balance" or "retired".
    reason: str


class PlacedModel(msgspec.Struct, frozen=True):
    name: str
    #: Bytes of one version; 0: not stated.
    memory: int
    #: Its workers now, and after the moves.
    before: tuple[str, ...]
    after: tuple[str, ...]
    #: Why no worker can have it; "": one has.
    unplaced: str
    #: What its replicas lack; "": nothing.
    short: str


class PlacementWorker(msgspec.Struct, frozen=True):
    name: str
    pool: str
    #: "serving", "draining" or "lost".
    state: str
    #: Bytes for models, and those in use after the moves. 0: not stated.
    memory: int
    used: int
    models: tuple[str, ...]


class PlacementAnswer(msgspec.Struct, frozen=True):
    """A plan of model placement. Asking for it applies nothing; in pools with ``replicas: planned`` the leader applies
    such plans by itself."""

    models: tuple[PlacedModel, ...]
    workers: tuple[PlacementWorker, ...]
    #: In their order: memory suffices after each of them.
    moves: tuple[PlacementMove, ...]
    #: Workers where a rollout of the largest model would not fit beside what is served.
    without_room: tuple[str, ...]
    #: Figures that are not measured, and what counts in their place.
    assumptions: tuple[str, ...]


class PlacementVerdict(msgspec.Struct, frozen=True):
    worker: str
    #: Whether the worker has the model.
    has: bool
    #: The first rule that keeps the model off the worker, or that it breaks there; "": none.
    rule: str
    detail: str


class PlacementExplanation(msgspec.Struct, frozen=True):
    """Why a model is on some workers and not on others."""

    model: str
    #: Models that are placed with it, itself included.
    together: tuple[str, ...]
    workers: tuple[PlacementVerdict, ...]
    #: What is missing, in one sentence; "": nothing.
    missing: str
    assumptions: tuple[str, ...]


class Rollouts(msgspec.Struct, frozen=True):
    """Rollouts, the newest last."""

    rollouts: tuple[RolloutRecord, ...]


class Done(msgspec.Struct, frozen=True):
    """The answer to a request that has no other result, as a sentence."""

    done: str


class Event(msgspec.Struct, frozen=True):
    #: The store's revision: pass it as ``after`` to get the next events.
    revision: int
    at: float
    who: str
    what: str
    about: str
    detail: str


class Events(msgspec.Struct, frozen=True):
    """Events, in the order of writing."""

    events: tuple[Event, ...]


class SloWindow(msgspec.Struct, frozen=True):
    """The requests of one window up to now."""

    seconds: int
    #: Requests that met the SLO, and those that did not by the fault of the fleet.
    good: int
    bad: int
    #: Share of good requests; null: there were none.
    ratio: float | None
    #: Bad requests as a multiple of what the objective allows.
    burn: float


class ModelSlo(msgspec.Struct, frozen=True):
    """The error budget of one model: the share of bad requests that its objective allows over 24 hours."""

    model: str
    #: Within which a request must be answered.
    limit_ms: float
    #: "no requests", "not counted" (there are more models than are counted), "kept", "burning" (more than allowed over
    #: 5 minutes and over an hour) or "spent".
    state: str
    #: 5 minutes, 1 hour, 6 hours, 24 hours.
    windows: tuple[SloWindow, ...]
    #: Shares of the budget; ``used`` may exceed 1.
    used: float
    left: float
    #: Seconds until it is spent at the rates of the last hour; null: never.
    spent_in_s: float | None = None


class SloAnswer(msgspec.Struct, frozen=True):
    """All models of the fleet. Times are in seconds since 1970."""

    at: int
    #: When the history begins, at most 24 hours ago; 0: there is none.
    since: int
    #: Share of requests that must be good.
    objective: float
    models: tuple[ModelSlo, ...]


class ModelFigure(msgspec.Struct, frozen=True):
    """One model version at all gateways, over the seconds of its frame. Times are those that callers waited for
    answers."""

    model: str
    #: "": requests that no version was found for.
    version: str
    answered: int
    rejected: int
    deadline_exceeded: int
    failed: int
    cancelled: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    #: By stage, the mean in ms: "gateway" and "worker" as measured, "queue" and "compute" as workers expect them.
    stages: dict[str, float] = {}
    #: (upper bound in ms, null: none; answered requests) of each bucket with any.
    durations: tuple[tuple[float | None, int], ...] = ()


class WorkerFigure(msgspec.Struct, frozen=True):
    """One worker as the gateways know it."""

    name: str
    tier: str
    in_flight: int
    queued: int
    #: Until a new request would start.
    wait_ms: float
    healthy: bool
    ejected: bool
    draining: bool
    standby: bool
    round_trip_ms: float | None


class GatewayFigure(msgspec.Struct, frozen=True):
    """One gateway over the seconds of its frame."""

    name: str
    #: False: it did not answer; its counts come with its next answer.
    reachable: bool
    requests: int
    retries: int
    hedges: int
    in_flight: int
    #: Its own share of a request, the mean.
    own_ms: float


class FigureFrame(msgspec.Struct, frozen=True):
    #: Seconds since 1970, and the length.
    at: int
    seconds: int
    models: tuple[ModelFigure, ...]
    workers: tuple[WorkerFigure, ...]
    #: None in frames that are longer than a second.
    gateways: tuple[GatewayFigure, ...]


class FiguresAnswer(msgspec.Struct, frozen=True):
    """This controller's figures of the fleet."""

    #: When its history begins, in seconds since 1970; 0: there is none yet.
    since: int
    #: The latest second in full; null: none yet.
    latest: FigureFrame | None
    #: The frames of the time that was asked for, the oldest first, without workers, stages and durations.
    frames: tuple[FigureFrame, ...]


def in_full(record: Any) -> Any:
    """Plain JSON values, including the fields that the store omits because they have their default values.

    Programs that read an answer need not know the defaults.
    """
    if isinstance(record, msgspec.Struct):
        config = record.__struct_config__
        kind = {config.tag_field: config.tag} if config.tag_field is not None else {}
        return {**kind, **{name: in_full(getattr(record, name)) for name in record.__struct_fields__}}
    if isinstance(record, dict):
        return {key: in_full(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [in_full(value) for value in record]
    return record
