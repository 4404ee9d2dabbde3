"""Divisions that follow a link which becomes bad and good again: a simulated link, the real estimates and decisions."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.clock import MILLISECOND, SECOND
from isochrone.models.divisions import Division, Link
from isochrone.worker.divided.estimates import division_times
from isochrone.worker.divided.probes import probe_interval, probe_size
from isochrone.worker.divided.replanning import Move, Replanner, ReplanRules
from isochrone.worker.remote.link import LARGE_BYTES, PROBE_BYTES, Crossing, LinkEstimator, UnderWay, is_another_link

GOOD, BAD = Link(0.002, 37.5e6, 0.0001), Link(0.060, 0.25e6)
LOOK = SECOND // 2
PROBE_EVERY = 10 * SECOND
#: The link is bad between them.
WORSE_AT, BETTER_AT, END = 8 * SECOND, 20 * SECOND, 50 * SECOND
#: A division may be returned to so long after the link is good again: a probe shows it, and then three looks.
RETURN_WITHIN = 12 * SECOND
#: Requests wait for an answer so long.
PATIENCE = 4 * SECOND
HEADS = 600

CUT = Division("cut-7", "m.cut-7", 8 * MILLISECOND, 7 * MILLISECOND, 36_864, 40, 0)
CORE = Division("core", "m.core", 0, 9 * MILLISECOND, 442_368, 40, 0)
EDGE = Division("edge", "m.edge", 60 * MILLISECOND, 0, 0, 0, 0)


@dataclass(order=True)
class Sent:
    ends: int
    began: int
    size: int
    core_ns: int = field(compare=False)


class Simulation:
    """One request at a time crosses the link, in the order of their beginnings."""

    def __init__(self, divisions: tuple[Division, ...], per_second: float, noise_ns: float, seed: int) -> None:
        self.divisions = {each.name: each for each in divisions}
        self.estimator = LinkEstimator(GOOD)
        self.replanner = Replanner(divisions[0].name, ReplanRules(), 0)
        self.every = round(SECOND / per_second)
        self.noise_ns = noise_ns
        self.random = random.Random(seed)
        self.under_way: list[Sent] = []
        self.free_at = 0
        self.probed, self.link_then = 0, GOOD
        self.moves: list[tuple[int, Move]] = []

    def link_at(self, now: int) -> Link:
        return BAD if WORSE_AT <= now < BETTER_AT else GOOD

    def send(self, now: int, size: int, core_ns: int) -> None:
        starts = max(now, self.free_at)
        link = self.link_at(starts)
        if WORSE_AT <= starts < BETTER_AT and size / BAD.bytes_per_second * 1e9 > BETTER_AT - starts:
            # The rest crosses the good link.
            crossed = BETTER_AT - starts
        else:
            crossed = round(size / link.bytes_per_second * 1e9)
        self.free_at = starts + crossed
        noise = round(abs(self.random.gauss(0, self.noise_ns)))
        ends = self.free_at + round(link.round_trip * 1e9) + core_ns + noise
        heapq.heappush(self.under_way, Sent(ends, now, size, core_ns))

    def run(self) -> None:
        asks, looks = 0, LOOK
        while min(asks, looks) < END:
            now = min(asks, looks)
            while self.under_way and self.under_way[0].ends <= now:
                sent = heapq.heappop(self.under_way)
                self.estimator.add(Crossing(sent.ends, sent.size, sent.ends - sent.began, sent.core_ns))
            self.under_way = [each for each in self.under_way if each.began > now - PATIENCE]
            heapq.heapify(self.under_way)
            if now == asks:
                asks += self.every
                division = self.divisions[self.replanner.present]
                if division.uses_link:
                    self.send(now + division.edge_ns, division.sent_bytes + HEADS, division.core_ns)
            if now == looks:
                looks += LOOK
                self.look(now)

    def look(self, now: int) -> None:
        waiting = [UnderWay(each.began, each.size, each.core_ns) for each in self.under_way]
        link = self.estimator.link(now, waiting)
        late = {
            each.name: division_times(each, link, each.edge_ns, each.core_ns).late for each in self.divisions.values()
        }
        move = self.replanner.look(now, late)
        if move is not None:
            self.moves.append((now, move))
        if not any(each.size == PROBE_BYTES for each in self.under_way):
            self.send(now, PROBE_BYTES, 0)
        last = max(self.estimator.bandwidth_seen, self.probed)
        changed = is_another_link(self.link_then, link)
        if changed or now - last >= probe_interval(link, PROBE_EVERY):
            self.probed, self.link_then = now, link
            self.send(now, LARGE_BYTES if changed else probe_size(link, PROBE_EVERY), 0)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(CUT, CORE, EDGE), (CUT, CORE)]),
    st.floats(0.5, 20),
    st.floats(0, MILLISECOND),
    st.integers(0, 1000),
)
def test_no_move_to_more_bytes_on_a_bad_link_and_a_return_on_a_good_one(
    divisions: tuple[Division, ...], per_second: float, noise_ns: float, seed: int
) -> None:
    simulation = Simulation(divisions, per_second, noise_ns, seed)
    simulation.run()
    for now, move in simulation.moves:
        more = simulation.divisions[move.target].sent_bytes > simulation.divisions[move.origin].sent_bytes
        # On the good link, the cut is the fastest of all.
        assert not more or now >= BETTER_AT, simulation.moves
    assert simulation.replanner.present == "cut-7"
    assert all(now <= BETTER_AT + RETURN_WITHIN for now, _ in simulation.moves), simulation.moves


@pytest.mark.parametrize("seed", range(5))
def test_a_bad_link_is_left_for_the_edge(seed: int) -> None:
    simulation = Simulation((CUT, CORE, EDGE), 8, 0.1 * MILLISECOND, seed)
    simulation.run()
    (away, first), (back, last) = simulation.moves
    assert (first.target, last.target) == ("edge", "cut-7")
    assert away <= WORSE_AT + 4 * SECOND
    assert BETTER_AT < back <= BETTER_AT + RETURN_WITHIN
