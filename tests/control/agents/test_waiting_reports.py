"""When a gateway writes which models' requests wait: at once, not too often, and at last what is true."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.agents.waiting_reports import BURST, SECONDS_PER_WRITE, WaitingReports


class Run:
    """The reports of a gateway, with a store that may fail, over a clock of its own."""

    def __init__(self) -> None:
        self.reports = WaitingReports()
        self.now = 100.0
        self.counts: dict[str, int] = {}
        self.stored: dict[str, int] = {}
        self.attempts: list[float] = []
        self.changed_at = self.now
        self.is_available = True

    def set(self, model: str, count: int) -> None:
        """So many requests of a model wait from now on."""
        before = self.counts.pop(model, 0)
        if count:
            self.counts[model] = count
        if bool(before) != bool(count):
            self.changed_at = self.now
            self.reports.changed(model, bool(count), self.now)
        self.pass_time(0)

    def pass_time(self, seconds: float) -> None:
        ends = self.now + seconds
        while (due := self.reports.due_at) <= ends:
            self.now = max(self.now, due)
            models = self.reports.take(self.counts, self.now)
            if models is None:
                continue
            self.attempts.append(self.now)
            if not self.is_available:
                self.reports.failed(self.now)
                continue
            assert models or self.now >= self.changed_at + 1.0, "deleted too early"
            self.stored = dict(models)
            self.reports.written()
        self.now = ends


def test_the_first_that_waits_is_written_at_once_and_the_record_stands_for_a_second() -> None:
    run = Run()
    assert run.reports.due_at == inf
    run.set("m", 1)
    assert run.stored == {"m": 1}
    run.set("m", 0)
    run.pass_time(0.99)
    assert run.stored == {"m": 1}
    run.pass_time(0.02)
    assert run.stored == {}
    assert run.reports.due_at == inf, "no timer while nothing waits"


def test_a_further_model_is_written_at_once_and_counts_once_a_second() -> None:
    run = Run()
    run.set("m", 1)
    run.set("n", 1)
    assert run.stored == {"m": 1, "n": 1}
    run.set("m", 9)
    run.pass_time(0.9)
    assert run.stored == {"m": 1, "n": 1}
    run.pass_time(0.2)
    assert run.stored == {"m": 9, "n": 1}
    run.pass_time(60)
    assert len(run.attempts) == 3, "nothing is written while nothing changes"


def test_a_record_is_written_again_under_a_new_lease() -> None:
    run = Run()
    run.set("m", 1)
    run.stored = {}  # it went with the lease
    run.reports.registered()
    run.pass_time(0)
    assert run.stored == {"m": 1}


def test_a_first_registration_writes_nothing() -> None:
    run = Run()
    run.reports.registered()
    assert run.reports.due_at == inf


events = st.lists(
    st.tuples(
        st.sampled_from(["wait", "registered", "available", "unavailable"]),
        st.sampled_from("abcdef"),
        st.integers(0, 3),
        st.sampled_from([0.0, 0.001, 0.1, 0.5, 1.0, 3.0]),
    ),
    max_size=80,
)


@given(events)
def test_writes_are_bounded_and_the_last_state_is_written(steps: list[tuple[str, str, int, float]]) -> None:
    run = Run()
    for what, model, count, seconds in steps:
        if what == "wait":
            run.set(model, count)
        elif what == "registered":
            run.stored = {}
            run.reports.registered()
        else:
            run.is_available = what == "available"
        run.pass_time(seconds)
    run.is_available = True
    run.pass_time(10)
    assert run.stored == run.counts
    for model in list(run.counts):
        run.set(model, 0)
    run.pass_time(10)
    assert run.stored == {}
    assert run.reports.due_at == inf
    for number, first in enumerate(run.attempts):
        for count, last in enumerate(run.attempts[number:], 1):
            assert count <= BURST + (last - first) / SECONDS_PER_WRITE + 1e-6


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True), st.integers(1, 400))
def test_waits_that_come_and_go_all_the_time_write_a_few_times_a_second(models: list[str], times: int) -> None:
    run = Run()
    for number in range(times):
        model = models[number % len(models)]
        run.set(model, 1)
        run.pass_time(0.002)
        run.set(model, 0)
        run.pass_time(0.002)
    assert len(run.attempts) <= BURST + times * 0.004 / SECONDS_PER_WRITE + 1
