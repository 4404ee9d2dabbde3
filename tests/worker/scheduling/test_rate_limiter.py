"""Resources that instances of all models share: who may run, whose turn it is, and the runner that asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_bench import Bench, Gated, entered, run, until

from isochrone.clock import SECOND, now_ns
from isochrone.errors import ConfigError, InvalidArgument
from isochrone.models.repository.repository import Repository
from isochrone.worker.catalog.load_settings import LoadSettings
from isochrone.worker.catalog.loading import prepare
from isochrone.worker.execution.instances.resource_gate import Demand, ResourceGate, SharedResources
from isochrone.worker.scheduling.rate_limiter import RateLimiter
from sample_models import write_config, write_python


class TestLimiter:
    def test_an_instance_runs_when_all_it_asks_for_is_there(self) -> None:
        limiter = RateLimiter({"r": 4, "s": 1})
        limiter.join("a", {"r": 3, "s": 1}, 1)
        limiter.join("b", {"r": 2}, 1)
        limiter.join("free", {}, 1)
        assert limiter.acquire("a")
        assert not limiter.acquire("b")
        assert limiter.acquire("free")
        assert limiter.release("a") == ["b"]
        assert limiter.acquire("b")
        assert not limiter.acquire("a")

    def test_without_a_limit_there_is_as_much_as_the_most_that_one_asks_for(self) -> None:
        limiter = RateLimiter()
        limiter.join("a", {"r": 3}, 1)
        limiter.join("b", {"r": 1}, 1)
        limiter.join("c", {"r": 2}, 1)
        assert limiter.acquire("b")
        assert limiter.acquire("c")
        assert not limiter.acquire("a")

    def test_the_one_that_ran_least_by_its_priority_comes_first(self) -> None:
        limiter = RateLimiter({"r": 1})
        for name, priority in (("often", 1), ("seldom", 3)):
            limiter.join(name, {"r": 1}, priority)
        runs: list[str] = []
        for _ in range(12):
            assert not (limiter.acquire("often") and limiter.acquire("seldom"))
            holder = next(name for name in ("often", "seldom") if limiter._shares[name].holds)
            runs.append(holder)
            limiter.wait(holder)
            first = limiter.release(holder)[0]
            assert limiter.acquire(first)
            runs.append(str(first))
            limiter.wait(first)
            limiter.release(first)
        assert runs.count("often") == 3 * runs.count("seldom")

    def test_one_that_leaves_gives_back_what_it_holds(self) -> None:
        limiter = RateLimiter({"r": 1})
        limiter.join("a", {"r": 1}, 1)
        limiter.join("b", {"r": 1}, 1)
        assert limiter.acquire("a")
        assert not limiter.acquire("b")
        assert limiter.leave("a") == ["b"]
        assert limiter.acquire("b")
        assert limiter.leave("b") == []
        assert limiter.leave("b") == []

    def test_what_could_never_run_is_refused(self) -> None:
        RateLimiter({"r": 2}).check({"r": 2, "other": 9}, "m")
        with pytest.raises(
            InvalidArgument, match="asks for 3 of resource 'r', and --rate-limit-resource limits it to 2"
        ):
            RateLimiter({"r": 2}).check({"r": 3}, "m")

    @given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60))
    def test_nothing_is_ever_given_twice(self, steps: list[tuple[int, bool]]) -> None:
        limiter = RateLimiter({"r": 5})
        for number in range(5):
            limiter.join(number, {"r": number + 1}, 1)
        holds: set[int] = set()
        for number, takes in steps:
            if takes and number not in holds and limiter.acquire(number):
                holds.add(number)
            elif not takes:
                limiter.release(number)
                holds.discard(number)
            assert sum(each + 1 for each in holds) <= 5
        for number in holds:
            limiter.release(number)
        assert limiter.acquire(4)


def limited(shared: SharedResources, executable: Gated, needs: int = 1, **options: object) -> Bench:
    return Bench(executable, max_rows=1, gate=ResourceGate(shared, [Demand({"r": needs}, 1)]), **options)


def closed(*benches: Bench) -> None:
    for bench in benches:
        bench.runner.release()
        bench.runner.close()


class TestRunner:
    def test_two_models_that_share_one_resource_never_run_at_once(self) -> None:
        async def scenario() -> None:
            shared = SharedResources({"r": 1})
            first, second = Gated(), Gated()
            one, other = limited(shared, first), limited(shared, second)
            held = one.send(-1)
            await entered(first)
            waiting = [other.send(value) for value in (1, 2)]
            again = one.send(5)
            for _ in range(20):
                await asyncio.sleep(0)
            assert second.runs == []
            first.gate.set()
            await one.answers(held, again)
            await other.answers(*waiting)
            assert (first.runs, second.runs) == ([1, 1], [1, 1])
            closed(one, other)

        run(scenario)

    def test_a_run_that_is_given_up_gives_its_resources_back(self) -> None:
        async def scenario() -> None:
            shared = SharedResources({"r": 1})
            hung, fresh, second = Gated(), Gated(), Gated()
            one = limited(shared, hung, execution_timeout_ns=SECOND)
            other = limited(shared, second)
            one.replacements = [fresh]
            one.send(-1)
            await entered(hung)
            waiting = other.send(1)
            one.runner.check_stuck(now_ns() + 2 * SECOND)
            await other.answers(waiting)
            await one.answers(one.send(3))
            assert fresh.runs == [1]
            hung.gate.set()
            await until(hung.closed.is_set)
            closed(one, other)

        run(scenario)

    def test_a_model_that_is_unloaded_lets_the_others_run(self) -> None:
        async def scenario() -> None:
            shared = SharedResources({"r": 1})
            hung, second = Gated(), Gated()
            one, other = limited(shared, hung), limited(shared, second)
            one.send(-1)
            await entered(hung)
            waiting = other.send(1)
            one.runner.fail_all()
            one.runner.release()
            await other.answers(waiting)
            hung.gate.set()
            one.runner.close()
            closed(other)

        run(scenario)

    def test_late_requests_do_not_keep_what_they_never_used(self) -> None:
        async def scenario() -> None:
            shared = SharedResources({"r": 1})
            first, second = Gated(), Gated()
            one, other = limited(shared, first), limited(shared, second)
            request = one.send(1)
            request.cancelled = True
            await one.answers(request)
            await other.answers(other.send(2))
            assert (first.runs, second.runs) == ([], [1])
            closed(one, other)

        run(scenario)


MODEL = """
    class Model:
        def infer(self, inputs):
            return {"Y": inputs["X"]}
"""
LIMITED = """
    backend: "python"
    input { name: "X" data_type: TYPE_FP32 dims: [1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [1] }
    instance_group { count: 1 rate_limiter { resources { name: "R1" count: 2 } } }
"""


def loading(tmp_path: Path, config: str, settings: LoadSettings) -> Callable[[], None]:
    write_config(tmp_path / "m", config)
    write_python(tmp_path / "m", MODEL)
    return lambda: prepare(Repository([tmp_path]).read("m"), 1, None, settings).discard()


def test_kinds_of_models_that_cannot_be_limited_are_refused(tmp_path: Path) -> None:
    on = LoadSettings(rate_limits={})
    loading(tmp_path, LIMITED, on)()
    sequence = LIMITED + "sequence_batching { direct { } }"
    loading(tmp_path, sequence, LoadSettings())()
    with pytest.raises(ConfigError, match=r"instance_group\.rate_limiter"):
        loading(tmp_path, sequence, on)()
