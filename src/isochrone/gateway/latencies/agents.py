"""Latencies and deadline misses per agent, in fixed memory. Pure.

Agents name themselves, so anybody can invent millions of them. The agents with the most requests, and those with the
most deadline misses, have figures of their own: exact, from the request on with which they got them. All others share
the figures of ``rest``. ``ranking`` decides who has figures of its own: one of many names that come once each does not,
once every place is taken.

``age`` halves the weights once a minute: who was heavy an hour ago makes room for who is heavy now.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from isochrone.clock import SECOND
from isochrone.gateway.latencies.durations import Durations
from isochrone.gateway.latencies.frequent_keys import KeyCount
from isochrone.gateway.latencies.ranking import Ranking
from isochrone.settings.ranges import Count

#: Weights of requests and misses halve this often.
HALF_LIFE_NS: Final = 60 * SECOND
#: Characters of a name on the metrics page; a longer one is cut, and ends in a hash of it all.
_MOST_SHOWN: Final = 64
_HASH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class AgentRules:
    """Which agents have latencies of their own on the metrics page."""

    #: Agents with the most requests, and as many with the most deadline misses; 0: none have figures of their own.
    most_tracked: Count = 50


def agent_name(value: bytes | None) -> str:
    """The value of an agent's header as a label: printable, of bounded length; "": there is none.

    Two values have the same name only if one of them is written as the escaped form of the other.
    """
    if not value:
        return ""
    name = value.decode("utf-8", "backslashreplace")
    if not name.isprintable():
        name = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in name)
    if len(name) <= _MOST_SHOWN:
        return name
    digest = blake2b(name.encode("utf-8", "backslashreplace"), digest_size=_HASH_BYTES).hexdigest()
    return f"{name[: _MOST_SHOWN - len(digest) - 1]}~{digest}"


class Agent:
    """The figures of one agent. ``counter``: of its place among those with the most requests; None: it has none."""

    __slots__ = ("counter", "durations", "misses", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.durations = Durations()
        self.misses = 0
        self.counter: KeyCount | None = None

    def merge(self, other: Agent) -> None:
        self.durations.merge(other.durations)
        self.misses += other.misses


class AgentLatencies:
    """The agents of one gateway."""

    def __init__(self, rules: AgentRules | None = None) -> None:
        most = (rules or AgentRules()).most_tracked
        #: Off: nothing is recorded.
        self.is_on = most > 0
        #: Those with figures of their own.
        self.tracked: dict[str, Agent] = {}
        #: Requests of agents that had none when they ended.
        self.rest = Agent("")
        #: The figures of agents that lost theirs, and how many did.
        self.replaced = Agent("")
        self.replacements = 0
        self._by_requests = Ranking(max(1, most))
        self._by_misses = Ranking(max(1, most))
        self._halved_at = 0

    def record(self, name: str, bucket: int, duration_ns: int, is_miss: bool) -> None:
        """A request of an agent ended. ``bucket``: that of its duration. ``is_miss``: not answered by its deadline."""
        agent = self.tracked.get(name)
        counter = agent.counter if agent is not None else None
        if agent is not None and counter is not None:
            # Nearly all requests.
            counter.count += 1
        else:
            agent = self._count(name)
        if is_miss:
            agent = self._count_miss(name, agent)
            agent.misses += 1
        # ``Durations.add``, without the call.
        durations = agent.durations
        durations.counts[bucket] += 1
        durations.sum_ns += duration_ns

    def age(self, now: int) -> None:
        """Call it every second or so."""
        if now - self._halved_at >= HALF_LIFE_NS:
            self._halved_at = now
            self._by_requests.halve()
            self._by_misses.halve()

    @property
    def total(self) -> int:
        """Requests of all agents."""
        everybody = (self.rest, self.replaced, *self.tracked.values())
        return sum(agent.durations.total for agent in everybody)

    def _count(self, name: str) -> Agent:
        """Count a request of an agent without a place among those with the most requests: the figures it belongs to."""
        dropped = self._by_requests.add(name)
        if dropped is not None:
            loser = self.tracked[dropped]
            loser.counter = None
            if dropped not in self._by_misses.places:
                self._forget(loser)
        counter = self._by_requests.places.get(name)
        agent = self.tracked.get(name)
        if counter is None:
            return agent or self.rest
        if agent is None:
            agent = self.tracked[name] = Agent(name)
        agent.counter = counter
        return agent

    def _count_miss(self, name: str, agent: Agent) -> Agent:
        dropped = self._by_misses.add(name)
        if dropped is not None and self.tracked[dropped].counter is None:
            self._forget(self.tracked[dropped])
        if agent is self.rest and name in self._by_misses.places:
            agent = self.tracked[name] = Agent(name)
        return agent

    def _forget(self, agent: Agent) -> None:
        del self.tracked[agent.name]
        self.replaced.merge(agent)
        self.replacements += 1
