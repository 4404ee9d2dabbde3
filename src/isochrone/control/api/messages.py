"""What the control API is asked and what it answers, as types. The OpenAPI document is made from them.

Unknown keys of a request are refused: a misspelt option must not be left out in silence.
"""

from __future__ import annotations

from typing import Any

import msgspec

from isochrone.control.state.records import Fault, ProcessRecord, RolloutRecord, Split


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Why not, in one sentence, and a stable code of the kind of failure."""

    error: str
    code: str


class StoreState(msgspec.Struct, frozen=True):
    """Whether this controller reaches the store. If not, answers are as of the revision, and writes get 503."""

    url: str
    connected: bool
    error: str
    revision: int


class Health(msgspec.Struct, frozen=True):
    live: bool
    #: The controller that leads; "": none.
    leader: str
    store: StoreState


class ModelStatus(msgspec.Struct, frozen=True):
    name: str
    #: What is served; "": nothing yet.
    version: str
    digest: str
    #: What a rollback goes to; "": nothing.
    previous: str
    canary: Split | None
    stages: tuple[str, ...]
    pools: tuple[str, ...]
    #: "serving", "degraded" (some gateways would not answer), "unserved" (none would), "not served" (nothing is
    #: committed), or the state of the rollout that changes it. By the gateways' own view.
    state: str
    #: The rollout that changes it; "": none.
    rollout: str
    #: Why a request would not be answered now; "": it would.
    fault: str = ""
    #: The gateway that says so, where what is committed cannot be read; "": it can.
    according_to: str = ""


class WorkerStatus(msgspec.Struct, frozen=True):
    name: str
    address: str
    #: Where its metrics page is; "": not known.
    metrics: str
    pool: str
    tier: str
    device: str
    kind: str
    draining: bool
    #: Since when it drains, in seconds since 1970; 0: it does not.
    draining_since: float
    #: Why gateways send it nothing; "": they do.
    fault: str = ""


class GatewayStatus(msgspec.Struct, frozen=True):
    name: str
    address: str
    metrics: str
    #: False: it is not heard of, but may still serve; a strict switch waits for it.
    registered: bool
    #: The epoch it serves by; 0: none.
    epoch: int
    draining: bool
    draining_since: float
    #: By record of the store: why it cannot read it.
    faults: dict[str, str] = {}


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
    #: Those not over.
    rollouts: tuple[RolloutRecord, ...]
    #: The latest that was aborted, unless its models have been changed since.
    aborted: RolloutRecord | None = None
    #: Generation of the fleet.yaml that the leader has started rollouts for.
    followed: int = 0
    #: Processes that died and do not serve again yet.
    processes: tuple[ProcessRecord, ...] = ()
    #: Records of the store that cannot be read: they are skipped.
    faults: tuple[Fault, ...] = ()


class FleetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fleet.yaml to apply."""

    text: str
    #: What relative paths in it are of: an absolute path on the controller's machine.
    directory: str
    #: Its name, for messages.
    file: str = "fleet.yaml"
    #: The generation it is to replace, as a plan told it; absent: whichever is there.
    generation: int | None = None
    #: What may be taken away (steps "retire" and "interrupt"), by kind and name as the plan has them: "model detector",
    #: "pool cpu"; true: whatever the plan takes away; absent: nothing.
    retire: tuple[str, ...] | bool = False


class PlanStep(msgspec.Struct, frozen=True):
    """One thing that applying does."""

    action: str
    #: Of what: "controller", "gateway", "pool", "model", "fleet".
    kind: str
    name: str
    detail: str


class PlanAnswer(msgspec.Struct, frozen=True):
    #: After it was applied; of a dry run, the one it would replace.
    generation: int
    applied: bool
    steps: tuple[PlanStep, ...]


class RolloutRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Models and the versions they are to serve, all at once."""

    changes: dict[str, str]
    #: "fast" or "strict"; absent: as fleet.yaml says.
    cutover: str | None = None
    #: A rule, true for the fleet's or the default one, false for none; absent: as fleet.yaml says.
    canary: dict[str, Any] | bool | None = None
    compare: dict[str, Any] | bool | None = None
    #: Who asks; absent: the header x-isochrone-user.
    by: str = ""


class AbortRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str = ""


class ScaleRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: Workers the pool is to have.
    workers: int
    #: Whether it may be none.
    retire: bool = False


class RestoreRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The epoch as a preview showed it."""

    #: Of the preview; "": whatever is known.
    digest: str = ""
    #: Gateways that need not offer what they serve.
    without: tuple[str, ...] = ()


class RestoredModel(msgspec.Struct, frozen=True):
    name: str
    version: str
    #: What a rollback goes to; "": nothing.
    previous: str
    canary: Split | None
    pools: tuple[str, ...]


class RestoreAnswer(msgspec.Struct, frozen=True):
    """The epoch that was rebuilt, in place of one whose record and copy cannot be read."""

    epoch: int
    #: False: a dry run, nothing was written.
    restored: bool
    #: What it was rebuilt from, in words.
    source: str
    models: tuple[RestoredModel, ...]
    #: What may be missing from it.
    notes: tuple[str, ...] = ()
    #: Of the whole epoch: a request that names it restores this or nothing.
    digest: str = ""


class Rollouts(msgspec.Struct, frozen=True):
    """The newest last."""

    rollouts: tuple[RolloutRecord, ...]


class Done(msgspec.Struct, frozen=True):
    """The answer to a request that leaves nothing more to tell, in words."""

    done: str


class Event(msgspec.Struct, frozen=True):
    #: Of the store: ask for events after it to get the next ones.
    revision: int
    at: float
    who: str
    what: str
    about: str
    detail: str


class Events(msgspec.Struct, frozen=True):
    """In the order they were written."""

    events: tuple[Event, ...]


def in_full(record: Any) -> Any:
    """Plain JSON values, with the fields that the store leaves out because they have their defaults.

    Whoever reads an answer by program need not know them.
    """
    if isinstance(record, msgspec.Struct):
        return {name: in_full(getattr(record, name)) for name in record.__struct_fields__}
    if isinstance(record, dict):
        return {key: in_full(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [in_full(value) for value in record]
    return record
