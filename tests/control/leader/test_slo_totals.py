"""The leader's totals for error budgets: one write a minute, nothing twice, and the next leader goes on."""

from __future__ import annotations

import asyncio

from planned_plant import RecordsOfLeader

from fleet_records import KEYS, Records
from isochrone.control.figures.frames import OTHER_MODELS, Frame, ModelFigures
from isochrone.control.figures.history import History
from isochrone.control.figures.totals import DAY, Totals, in_window
from isochrone.control.leader.slo_totals import SloTotals
from isochrone.control.state.records import SloTotalsRecord

FLEET = """
name: plant
pools: {cpu: {workers: 1}}
models: {m: {version: 1, slo: {deadline_ms: 1}}, n: {version: 1}}
"""
#: The start of a minute.
START = 60 * 30_000_000


class Led:
    """A fleet, and one controller's history of it."""

    def __init__(self, records: Records | None = None) -> None:
        self.records = records or Records(FLEET)
        self.history = History()
        self.totals = SloTotals(RecordsOfLeader(self.records), self.history)

    def second(self, at: int, *, lead: bool = True, **answered: int) -> None:
        """Requests of 20 ms: late for m, in time for n."""
        models = {
            (name, "1"): ModelFigures(name, "1", count, durations={16: count}) for name, count in answered.items()
        }
        self.history.add(Frame(at, models))
        if lead:
            self.lead()

    def lead(self) -> None:
        asyncio.run(self.totals.reconcile(self.records.view))

    def of(self, model: str, now: int) -> Totals:
        return in_window(self.records.view.slo_totals.get(model), {}, now // 60, DAY)


def test_a_minute_is_recorded_when_it_is_over() -> None:
    led = Led()
    for second in range(60):
        led.second(START + second, m=1, n=2)
    assert not led.records.view.slo_totals
    revision = led.records.revision
    led.second(START + 60, m=5)
    assert (led.of("m", START), led.of("n", START)) == (Totals(0, 60), Totals(120, 0))
    assert led.records.revision == revision + 1
    for second in range(61, 119):
        led.second(START + second)
    assert led.records.revision == revision + 1, "one write a minute"
    led.second(START + 125)
    assert led.of("m", START + 60) == Totals(0, 65)
    assert led.records.view.slo_totals["n"].minute == START // 60, "without requests nothing is written"


def test_the_next_leader_goes_on_with_its_own_history() -> None:
    first = Led()
    second = Led(first.records)
    for at in range(START, START + 150):
        first.second(at, lead=at < START + 100, m=1)
        second.second(at, lead=False, m=1)
    assert first.of("m", START) == Totals(0, 60)
    # The first one is lost in the second minute; the other leads from here on.
    second.second(START + 150, m=1)
    assert second.of("m", START + 60) == Totals(0, 120)
    second.second(START + 180, m=1)
    assert second.of("m", START + 120) == Totals(0, 151)


def test_a_leader_that_leads_again_counts_nothing_twice() -> None:
    led = Led()
    for at in range(START, START + 130):
        led.second(at, m=1)
    led.totals.stop()
    led.lead()
    assert led.of("m", START + 60) == Totals(0, 120)


def test_records_are_bounded_and_end() -> None:
    led = Led()
    models = {f"x{number}": 1 for number in range(300)}
    led.second(START, lead=True, m=1, **models)
    led.second(START + 60, n=1)
    known = led.records.view.slo_totals
    assert len(known) <= 256
    assert OTHER_MODELS not in known
    led.second(START + 60 * (DAY + 3), n=1)
    led.second(START + 60 * (DAY + 4), n=1)
    assert set(led.records.view.slo_totals) == {"n"}


def test_models_of_the_fleet_come_first_and_known_ones_take_no_further_place() -> None:
    led = Led()
    many = {f"a{number:03}": 1 for number in range(200)}
    led.second(START, lead=True, **many)
    led.second(START + 60, lead=True, m=1, **many, **{f"b{number:03}": 1 for number in range(200)})
    assert set(led.records.view.slo_totals) == set(many)
    led.second(START + 120)
    known = led.records.view.slo_totals
    assert (len(known), set(many) <= set(known), "m" in known) == (256, True, True)
    assert led.of("a199", START + 60) == Totals(2, 0)


def test_after_a_clock_was_set_back_requests_count() -> None:
    ahead = Led()
    for at in range(START, START + 3600, 30):
        ahead.second(at, m=1)
    behind = Led(ahead.records)
    for at in range(START + 600, START + 800):
        behind.second(at, m=1)
    # 20 requests of the ten minutes before, and each second of three minutes.
    assert behind.records.view.slo_totals["m"].minute == START // 60 + 12
    assert behind.of("m", START + 800) == Totals(0, 20 + 180)


def test_a_record_that_cannot_be_read_is_replaced() -> None:
    led = Led()
    led.records.put(KEYS.slo_totals_of("m"), b"nonsense")
    led.second(START, m=1)
    led.second(START + 60)
    assert isinstance(led.records.view.slo_totals["m"], SloTotalsRecord)
    assert not led.records.view.faults()
