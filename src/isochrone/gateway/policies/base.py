"""The interface of a routing policy: an object that chooses one of the eligible replicas. No I/O, no clock.

One policy object serves one version of one model on one gateway. Its caller, the gateway or the simulator, keeps each
replica's own figures and reports events: ``replicas_changed`` when the eligible set changes, ``sent``, ``ended`` and
``dropped`` for each attempt, ``reported`` when a load report arrives. Time is an argument, in ns of a monotonic clock.
Randomness comes from the ``Random`` that the policy is constructed with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import ClassVar, NamedTuple

from isochrone.clock import NEVER
from isochrone.gateway.replicas import Replica


class TokenDeadlines(NamedTuple):
    """What a request asks of a model that generates."""

    #: The instant by which the first token must arrive.
    first_by: int
    #: Between two tokens; 0: any time.
    between_ns: int


class Demand:
    """What a policy knows about a request."""

    __slots__ = ("avoid", "deadline", "is_timed", "key", "priority", "prompt", "rows", "starts_sequence", "tokens")

    def __init__(
        self,
        key: bytes = b"",
        deadline: int = NEVER,
        rows: int = 1,
        priority: int = 0,
        avoid: tuple[Replica, ...] = (),
        starts_sequence: bool = False,
        prompt: bytes = b"",
        tokens: TokenDeadlines | None = None,
    ) -> None:
        #: The affinity key: agent, sequence or a header's value; empty: none.
        self.key = key
        #: The instant by which the answer must arrive.
        self.deadline = deadline
        #: Rows of the batch. 1 in the gateway, which does not parse shapes; simulations know it.
        self.rows = rows
        self.priority = priority
        #: Replicas already tried: chosen only when no other is eligible.
        self.avoid = avoid
        #: It carries ``sequence_start``.
        self.starts_sequence = starts_sequence
        #: How the prompt of a model that generates text begins, as the caller wrote it; empty: there is none, or the
        #: policy does not ask for it.
        self.prompt = prompt
        #: Deadlines of tokens; None: it asks for none.
        self.tokens = tokens
        #: Whether admission has anything to check.
        self.is_timed = deadline != NEVER or tokens is not None

    def avoiding(self, replicas: tuple[Replica, ...]) -> Demand:
        """The same without replicas that were tried."""
        return Demand(
            self.key,
            self.deadline,
            self.rows,
            self.priority,
            replicas,
            self.starts_sequence,
            self.prompt,
            self.tokens,
        )

    def with_tokens(self, tokens: TokenDeadlines) -> Demand:
        """The same with deadlines of tokens."""
        return Demand(
            self.key,
            self.deadline,
            self.rows,
            self.priority,
            self.avoid,
            self.starts_sequence,
            self.prompt,
            tokens,
        )

    def sooner_by(self, time_ns: int) -> Demand:
        """The same with tokens that are due so much earlier, for replicas that are so far away."""
        if not time_ns or self.tokens is None:
            return self
        # The first token is due by the request's own deadline, too. The way does not lengthen the time between tokens.
        first_by = min(self.deadline, self.tokens.first_by)
        return self.with_tokens(
            TokenDeadlines(first_by - time_ns if first_by != NEVER else NEVER, self.tokens.between_ns)
        )


class Policy:
    """Subclasses override ``choose``, and those events that they need."""

    name: ClassVar[str]
    #: Whether ``probes`` may return replicas now. The caller asks only then, since most policies never probe.
    wants_probes = False
    #: Whether ``Demand.prompt`` is set for it.
    reads_prompts: ClassVar[bool] = False

    def __init__(self, random: Random) -> None:
        self._random = random
        self.replicas: Sequence[Replica] = ()

    def replicas_changed(self, replicas: Sequence[Replica]) -> None:
        """Replace the eligible replicas. There may be none."""
        self.replicas = replicas

    def choose(self, demand: Demand, now: int) -> Replica:
        """Choose an eligible replica. At least one exists; one of ``demand.avoid`` only if there is no other."""
        raise NotImplementedError

    def sent(self, replica: Replica, now: int) -> None:
        """An attempt was sent to the replica, whose figures already include it."""

    def ended(self, replica: Replica, latency_ns: int, failed: bool, now: int) -> None:
        """An attempt ended with an answer, or failed."""

    def dropped(self, replica: Replica, sent_at: int, now: int, *, unneeded: bool = False) -> None:
        """An attempt ended without evidence about the replica: it was given up or rejected.

        ``unneeded``: its answer was not needed: another attempt's came first, or it was a shadow copy.
        """

    def reported(self, replica: Replica, now: int) -> None:
        """The replica's load report arrived."""

    def wants_report(self, replica: Replica) -> bool:
        """Whether ``reported`` must be called for a report of the replica's endpoint that came without an answer."""
        return True

    def report_candidates(self) -> Iterable[Replica] | None:
        """Replicas among which all are that ``wants_report`` holds of; None: any may be. Of a hundred endpoints that
        report ten times a second, a model with few requests need not look at each."""
        return None

    def probes(self, now: int) -> Sequence[Replica]:
        """Replicas to probe now; called after each choice. The caller may skip some."""
        return ()

    def counts(self) -> Mapping[str, int]:
        """Decisions by kind, for the metrics page. They never go down."""
        return {}

    def other_than(self, avoid: Sequence[Replica]) -> Replica:
        """A random eligible replica, not one of ``avoid`` if there is another."""
        left = [replica for replica in self.replicas if replica not in avoid]
        return self._random.choice(left or self.replicas)
