"""One request, and one sending of it: the records that the request machine reads and changes.

Codecs subclass both, so that one allocation holds what the machine decides by and what the protocol needs. A codec
fills in what it reads: model, version, demand, deadline, kind. What every request reads is set by the constructors:
CPython 3.11 reads a default of the class three times as slowly. What only some requests read stands on the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from isochrone.clock import NEVER
from isochrone.gateway.resilience.breaker import FIRST_ROUND
from isochrone.gateway.resilience.retry_budget import Kind

if TYPE_CHECKING:
    from isochrone.errors import IsochroneError
    from isochrone.gateway.fleet.replica_set import ReplicaSet
    from isochrone.gateway.fleet.served_model import ServedModel
    from isochrone.gateway.policies.base import Demand
    from isochrone.gateway.replicas import Replica
    from isochrone.gateway.requests.trail import Trail
    from isochrone.gateway.resilience.breaker import Breaker
    from isochrone.gateway.resilience.suspects import Key
    from isochrone.gateway.traffic.divisions import Choice
    from isochrone.gateway.traffic.fields import Fields
    from isochrone.gateway.traffic.quotas import Quotas
    from isochrone.gateway.traffic.shadow import Shadow
    from isochrone.wire.exchange import Buffer


class Waiting(Protocol):
    """Where a request waits."""

    def remove(self, request: Request) -> None: ...


class Attempt:
    """One sending of a request to one replica."""

    #: When the first of its answer was passed on.
    streaming_at = 0
    #: It was sent beside another attempt that took long.
    is_hedge = False
    #: It ended with its connection: its first repetition is free.
    lost = False
    #: Why its answer does not follow the protocol; "": it does, or there is none.
    foreign = ""
    #: The code of the error that the gateway gave it up with; "": it did not, or another attempt was answered first.
    given_up = ""
    #: The replica's circuit breaker when it was sent, and its round; None: there was none.
    breaker: Breaker | None = None
    breaker_round = FIRST_ROUND
    #: How a divided model runs it; None: the gateway decides nothing about that model.
    division: Choice | None = None
    #: The trace context that it sends on in place of the caller's; b"": the gateway is not traced.
    trace_parent: bytes = b""
    #: What was known of the replicas when it was sent (``flights.recording``); empty: nothing is recorded.
    candidates: tuple[Any, ...] = ()
    #: When its answer was whole, and what that is to the caller (a number of ``latencies.version_durations``).
    answered_at = 0
    ended_as = 0

    def __init__(self, request: Request, replica_set: ReplicaSet, replica: Replica, now: int) -> None:
        #: Its answer is being passed on: no other attempt can replace it.
        self.streaming = False
        self.over = False
        #: The endpoint's load report is asked for with this attempt.
        self.asks = False
        self.request = request
        self.replica_set = replica_set
        self.replica = replica
        self.sent_at = now
        #: The replica's requests in flight when it was sent.
        self.load = replica.sent()


class Request:
    """One caller's request, from arrival to answer."""

    #: The machine makes one for each sending.
    attempt_type: ClassVar[type[Attempt]] = Attempt

    served: ServedModel
    replica_set: ReplicaSet
    demand: Demand
    #: The epoch it was placed by; 0: no control plane commits epochs.
    epoch = 0
    #: Of a stream: when the answer to its first message is due; NEVER: with the call.
    first_due = NEVER
    #: When a hedge may be sent; NEVER: none is.
    hedge_at = NEVER
    #: When it is given up on an endpoint that fails its health checks; NEVER: it is not on one.
    patience_until = NEVER
    #: The compute time to charge to its quotas.
    compute_ns = 0
    #: Attempts that reached no worker: the connection was refused, or broke before the request was sent.
    unreached = 0
    #: One of its attempts may have run, whatever the others say.
    may_have_run = False
    #: A rejection, answered when no other attempt is answered better.
    rejection: Attempt | None = None
    #: Set while it waits for a switch or for a worker; and whether it goes on by RESUME then, since a codec keeps its
    #: messages.
    held: Waiting | None
    is_parked = False
    #: Since when it waits for a worker, and the instant of its longest wait; 0: it never waited.
    waits_since = 0
    waits_until = 0
    #: Whether its codec can ask an endpoint for a load report.
    can_ask: ClassVar[bool] = True
    #: Whether it can arrive once more, when a worker is ready.
    can_wait: ClassVar[bool] = True
    #: Whether it can be found out that it ended a process.
    may_be_suspect: ClassVar[bool] = True
    #: Whether this process sends it, so that it can send it again. A proxy sends what a picker has placed.
    is_repeatable: ClassVar[bool] = True
    #: Whether the model works for it. A question about the model is not charged to quotas.
    is_inference = True
    #: Addresses of the endpoints it may go to; None: any.
    subset: frozenset[str] | None = None
    fingerprint: bytes | None = None
    #: The caller, as it calls itself (``latencies.agents.agent_name``); "": it does not.
    agent = ""
    #: The trace that the caller samples, or that a traced gateway keeps; "": none.
    trace_id = ""
    #: Of a stream: when the first of its answers was passed on; 0: none was.
    streaming_at = 0
    #: What a suspect is answered with when no endpoint is left.
    loss: IsochroneError | None = None
    #: What a traced gateway notes of it; None: nothing.
    trail: Trail | None = None
    #: Its attempts that did not answer it, for the flight recorder; None: there were none.
    flown: list[tuple[Any, ...]] | None = None
    #: Ids in its head: x-request-id, and that of its trace.
    caller_ids: tuple[str, ...] = ()

    def __init__(self, arrived: int) -> None:
        #: When it came. What waited for a worker counts as arrived when it goes on; ``came_at`` stays.
        self.arrived = self.came_at = arrived
        #: When it was first sent; 0: it was not.
        self.sent_at = 0
        #: In flight; two when a hedge was sent.
        self.attempts: list[Attempt] = []
        #: Replicas it was sent to.
        self.tried: tuple[Replica, ...] = ()
        self.kind = Kind.STATELESS
        self.deadline = NEVER
        #: When the machine wants to be called for it; see ``RequestMachine.due``.
        self.due_at = NEVER
        #: The version that the caller names; "": none.
        self.version = ""
        #: The epoch that the caller asks for; None: none.
        self.asked_epoch: bytes | None = None
        #: The quotas it was granted by, with their accounts.
        self.granted: list[tuple[Quotas, bytes]] | None = None
        #: Set on a copy: never repeated, and no evidence about a replica that live requests go by.
        self.shadow: Shadow | None = None
        #: Set when it may be what ends workers' processes: it is sent alone.
        self.suspect: Key | None = None
        self.over = False
        self.held = None

    @property
    def head(self) -> Fields:
        """The header fields that quotas, canaries and affinity go by."""
        raise NotImplementedError

    @property
    def account(self) -> bytes | None:
        """Whose quotas it uses: its proved identity's or tenant's; None: the server has no access rules."""
        return None

    @property
    def body(self) -> Buffer:
        raise NotImplementedError

    def tokens_of(self, attempt: Attempt | None) -> int:
        """Tokens that it has used and that were not charged yet. ``attempt``: its answer; None: it was cancelled."""
        return 0

    def take_fingerprint(self) -> bytes:
        """A hash of what it asks for, without its id."""
        raise NotImplementedError
