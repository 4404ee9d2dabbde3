"""Series of agents that end while their process lives: the sum over the processes never falls, and does not grow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest

from isochrone.gateway.duration_metrics import agent_metrics
from isochrone.gateway.latencies.agents import AgentLatencies, AgentRules
from isochrone.gateway.latencies.durations import bucket_of
from isochrone.multiprocess.metrics.page_sum import Counts, Page, add_up, parse, retire, settle, without_ended
from isochrone.observe.metrics.pieces import MetricsPieces

COUNT = "isochrone_gateway_agent_request_duration_seconds_count"
#: The process that answers, the agent, and its duration in ms; None: somebody reads the page.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 2), st.sampled_from(["a", "b", 'c",agent="d', "e\\"]), st.integers(0, 100)),
        st.none(),
    ),
    max_size=120,
)


def page_of(agents: AgentLatencies) -> Page:
    pieces = MetricsPieces(generate_latest)
    pieces.add(agent_metrics([agents.rest, *agents.tracked.values()]))
    return parse(pieces.page().decode())


def totals(page: Page) -> dict[tuple[str, str], float]:
    return {key: value for family in page.families.values() for key, value in family.samples.items()}


@given(STEPS)
def test_no_sum_falls_while_a_process_has_the_series(steps: list[tuple[int, str, int] | None]) -> None:
    processes = {number: AgentLatencies(AgentRules(1)) for number in (1, 2)}
    last = {number: page_of(agents) for number, agents in processes.items()}
    retired: Counts = {}
    before: dict[tuple[str, str], float] = {}
    for step in [*steps, None]:
        if step is not None:
            number, name, milliseconds = step
            duration = milliseconds * 1_000_000
            processes[number].record(name, bucket_of(duration), duration, False)
            continue
        for number, agents in processes.items():
            page = page_of(agents)
            retired = settle(last[number], page, retired)
            last[number] = page
        retired = without_ended(last.values(), retired)
        after = totals(add_up(last, retired))
        for key, value in after.items():
            assert value >= before.get(key, 0.0)
        buckets = {labels: value for (name, labels), value in after.items() if 'le="+Inf"' in labels}
        counts = {labels: value for (name, labels), value in after.items() if name == COUNT}
        assert sorted(buckets.values()) == sorted(counts.values())
        assert set(retired) <= set(after), "what no process has any more is forgotten"
        before = after


def test_the_counts_of_a_replaced_agent_stay_where_another_process_has_it() -> None:
    one, other = AgentLatencies(AgentRules(1)), AgentLatencies(AgentRules(1))
    for _ in range(3):
        one.record("a", 0, 1000, False)
        other.record("a", 0, 1000, True)
    first, second = page_of(one), page_of(other)
    for _ in range(10):
        one.record("b", 0, 1000, False)
    later = page_of(one)
    retired = settle(first, later, {})
    sums = totals(add_up({1: later, 2: second}, retired))
    assert sums[COUNT, '{agent="a"}'] == 6
    assert sums["isochrone_gateway_agent_deadline_misses_total", '{agent="a"}'] == 3
    assert 'agent="a"' not in str(without_ended([later], retired)), "no process has it any more"


def test_ended_processes_leave_no_agents_behind() -> None:
    agents = AgentLatencies(AgentRules(5))
    for number in range(5):
        agents.record(f"agent-{number}", 0, 1000, False)
    retired = retire(page_of(agents), {("nv_requests", ""): 1.0})
    kept = without_ended([page_of(AgentLatencies())], retired)
    assert {labels for _, labels in kept if "agent=" in labels and 'agent=""' not in labels} == set()
    assert kept["nv_requests", ""] == 1
