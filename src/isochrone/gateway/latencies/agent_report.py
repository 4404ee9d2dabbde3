"""The agents of a gateway for displays: counts, and percentiles in milliseconds. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.gateway.latencies.agents import Agent, AgentLatencies


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """One agent, or several together."""

    agent: str
    requests: int
    #: Requests that were not answered by their deadlines.
    deadline_misses: int
    mean_ms: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class AgentReport:
    """All agents of a gateway. ``agents``, ``rest`` and ``replaced`` add up to ``requests``."""

    #: Of agents; requests that name none do not count.
    requests: int
    #: Those with figures of their own, the most requests first.
    agents: tuple[AgentFigures, ...]
    #: All others.
    rest: AgentFigures
    #: Agents that had figures of their own and lost them to others; and how many.
    replaced: AgentFigures
    replacements: int


def agent_report(agents: AgentLatencies) -> AgentReport:
    figures = [_figures(agent) for agent in agents.tracked.values()]
    figures.sort(key=lambda each: (-each.requests, each.agent))
    rest, replaced = _figures(agents.rest), _figures(agents.replaced)
    total = sum(each.requests for each in (*figures, rest, replaced))
    return AgentReport(total, tuple(figures), rest, replaced, agents.replacements)


def _figures(agent: Agent) -> AgentFigures:
    durations = agent.durations
    requests = durations.total
    return AgentFigures(
        agent.name,
        requests,
        agent.misses,
        durations.sum_ns / requests / 1e6 if requests else 0.0,
        durations.percentile(0.5) / 1e6,
        durations.percentile(0.99) / 1e6,
    )
