"""What a process says of one request: the JSON of ``GET /v1/flights/ID`` and of dumped deadline misses.

Instants are monotonic ns of the process that recorded them: they compare within one page only. No payloads.
"""

from __future__ import annotations

import msgspec

GATEWAY, WORKER = "gateway", "worker"
ANSWERED = "answered"
#: Kinds of events.
GC_PAUSE, STALL, LOAD, UNLOAD, REPLACED, EJECTED, EPOCH = (
    "gc pause",
    "stall",
    "model load",
    "model unload",
    "instance replaced",
    "worker ejected",
    "epoch",
)


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened to a whole process. ``began`` equals ``ended`` where it took no time."""

    kind: str
    began: int
    ended: int
    detail: str = ""


class Candidate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker that a gateway could have chosen, as the gateway knew it then. 0: not reported."""

    endpoint: str
    #: Requests of the model from this gateway.
    in_flight: int = 0
    #: By its load report: requests that waited, until a new request would start, and its run (alone, if reported).
    queue: int = 0
    wait_ns: int = 0
    run_ns: int = 0
    #: Age of that report; -1: there was none.
    report_age_ns: int = -1

    @property
    def expected_ns(self) -> int:
        """How long a request was expected to take there; 0: not known."""
        return self.wait_ns + self.run_ns if self.run_ns else 0


class AttemptFlight(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sending of a request."""

    endpoint: str
    version: str
    sent: int
    ended: int
    #: "answered", "cancelled", or how it failed.
    outcome: str
    is_hedge: bool = False
    #: When the first byte of a streamed answer came; 0: the answer was not streamed, or there was none.
    first_byte: int = 0
    #: Requests of the model in flight there, this one included.
    in_flight: int = 0
    candidates: tuple[Candidate, ...] = ()


class GatewayFlight(msgspec.Struct, frozen=True, omit_defaults=True, tag=GATEWAY, tag_field="role"):
    """What a gateway remembers of one request."""

    id: str
    model: str
    version: str
    arrived: int
    ended: int
    #: "answered", "cancelled" or the code of an error.
    outcome: str
    #: The ids that its head carries: x-request-id and the id of its trace.
    further_ids: tuple[str, ...] = ()
    message: str = ""
    #: What decided a rejection: "quota", "breaker", "no worker" or "".
    rejected_by: str = ""
    #: HTTP status of the worker's answer; 0: none.
    status: int = 0
    #: 0: none.
    deadline: int = 0
    priority: int = 0
    epoch: int = 0
    #: The version of the model that is not under evaluation, and whether the request got another one.
    current_version: str = ""
    is_canary: bool = False
    #: Since when it waited for a worker to be ready (0: it did not), and when it went on.
    waited_since: int = 0
    admitted: int = 0
    #: When it was first sent; 0: it was not.
    sent: int = 0
    attempts: tuple[AttemptFlight, ...] = ()
    #: Of a rejection for its deadline: what the best worker would have taken, and by how much it would have been late.
    expected_ns: int = 0
    missed_by_ns: int = 0
    #: What was known of the workers when it was rejected.
    candidates: tuple[Candidate, ...] = ()

    @property
    def is_miss(self) -> bool:
        return self.outcome == "deadline_exceeded" or bool(self.deadline and self.ended > self.deadline)


class BatchMate(msgspec.Struct, frozen=True):
    """Another request of the same batch."""

    id: str
    rows: int


class BatchFlight(msgspec.Struct, frozen=True, omit_defaults=True):
    """The batch that a request ran in."""

    requests: int
    rows: int
    #: -1: it ran on the event loop's thread.
    instance: int = -1
    #: How long such a batch was expected to run; 0: not known.
    expected_ns: int = 0
    #: Requests that waited in the queue when it was answered.
    waiting: int = 0
    #: A few of the others.
    mates: tuple[BatchMate, ...] = ()


class WorkerFlight(msgspec.Struct, frozen=True, omit_defaults=True, tag=WORKER, tag_field="role"):
    """What a worker remembers of one request. An instant that is 0 was not reached."""

    id: str
    model: str
    version: str
    rows: int
    arrived: int
    #: When its last stage ended; of one under way, when the page was made.
    ended: int
    outcome: str
    further_ids: tuple[str, ...] = ()
    message: str = ""
    deadline: int = 0
    priority: int = 0
    enqueued: int = 0
    dispatched: int = 0
    compute_start: int = 0
    infer_start: int = 0
    infer_end: int = 0
    compute_end: int = 0
    #: How long its run was expected to take alone; 0: not known.
    alone_ns: int = 0
    batch: BatchFlight | None = None
    #: Of a rejection: requests that waited, and by how much it would have been late.
    waiting: int = 0
    missed_by_ns: int = 0
    is_under_way: bool = False

    @property
    def is_miss(self) -> bool:
        return self.outcome == "deadline_exceeded" or bool(self.deadline and self.ended > self.deadline)


class VersionFact(msgspec.Struct, frozen=True):
    """What a gateway knows of a version of a model: the mean latency of its workers; 0: not measured."""

    version: str
    latency_ns: int


Flight = GatewayFlight | WorkerFlight


class FlightPage(msgspec.Struct, frozen=True):
    """What one process remembers of one id: the latest request first."""

    #: "gateway" or "worker".
    role: str
    pid: int
    #: When the page was made, by the clock of the process and as seconds since 1970.
    now: int
    time: float
    #: How far the ring reaches back, and how many requests it holds.
    kept_ns: int
    kept: int
    #: Its ports by service, so that a gateway's endpoint is recognised.
    ports: dict[str, int] = {}
    #: Its name in the fleet, and host:port as gateways know it; whoever asks for the page fills them in.
    name: str = ""
    endpoint: str = ""
    flights: tuple[Flight, ...] = ()
    #: Those during the flights.
    events: tuple[Event, ...] = ()
    #: Of the models of the flights, by model.
    versions: dict[str, tuple[VersionFact, ...]] = {}


class FlightPages(msgspec.Struct, frozen=True):
    """The pages of all processes of one server."""

    pages: tuple[FlightPage, ...]


class FlightSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of ``GET /v1/flights``: the latest requests that missed their deadline or failed."""

    id: str
    model: str
    version: str
    time: float
    total_ns: int
    outcome: str
    is_miss: bool = False


class FlightList(msgspec.Struct, frozen=True):
    role: str
    flights: tuple[FlightSummary, ...]
