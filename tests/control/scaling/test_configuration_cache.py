"""Configurations of a pool's models: each is asked for once, the busiest first, and again after a restart."""

from __future__ import annotations

from scaling_readings import version

from isochrone.control.scaling.reading.configuration_cache import ConfigurationCache
from isochrone.control.scaling.reading.fleet_counters import ModelConfiguration, WorkerStatistics

FOUND = ModelConfiguration(4)


def page(models: dict[str, int], incarnation: str = "1") -> WorkerStatistics:
    """``models``: by name, the executions."""
    return WorkerStatistics(
        incarnation, {model: {"1": version({1: 0.01}, executions=number)} for model, number in models.items()}
    )


def asked(cache: ConfigurationCache, **workers: WorkerStatistics) -> list[tuple[str, str]]:
    """(worker, model) that a reading asks for."""
    cache.keep(workers)
    for name, statistics in workers.items():
        cache.take(name, statistics)
    return [(worker, model) for worker, (model, _) in cache.questions()]


def test_the_busiest_are_asked_for_first_and_at_most_32_of_one_worker() -> None:
    models = {f"m{number}": number for number in range(1, 101)}
    questions = asked(ConfigurationCache(), a=page(models), b=page(models))
    assert [model for _, model in questions] == [f"m{number}" for number in range(100, 36, -1)]
    assert [worker for worker, _ in questions] == ["a"] * 32 + ["b"] * 32


def test_executions_since_the_last_reading_count() -> None:
    cache = ConfigurationCache()
    asked(cache, a=page({"old": 1000, "new": 10}))
    assert asked(cache, a=page({"old": 1001, "new": 20})) == [("a", "new"), ("a", "old")]


def test_one_without_an_answer_does_not_hold_the_others_up() -> None:
    cache = ConfigurationCache()
    busy = page({f"m{number}": 100 for number in range(32)} | {"other": 1})
    for _, model in asked(cache, a=busy):
        cache.answer((model, "1"), None)
    assert asked(cache, a=busy)[0] == ("a", "other")


def test_a_worker_that_loaded_a_version_again_is_asked_again() -> None:
    cache = ConfigurationCache()
    assert asked(cache, a=page({"m": 10}), b=page({"m": 10})) == [("a", "m")]
    cache.answer(("m", "1"), FOUND)
    assert asked(cache, a=page({"m": 20}), b=page({"m": 20}), c=page({"m": 1})) == [], "a new worker has the same"
    assert asked(cache, a=page({"m": 30}), b=page({"m": 5})) == [("b", "m")], "its counters are lower"
    cache.answer(("m", "1"), FOUND)
    assert asked(cache, a=page({"m": 30}), b=page({"m": 50}, incarnation="2")) == [("b", "m")]


def test_answers_complete_the_statistics_of_all_workers() -> None:
    cache = ConfigurationCache()
    unknown = page({"m": 10})
    asked(cache, a=unknown, b=unknown)
    assert cache.complete(unknown).models["m"]["1"].configuration is None
    cache.answer(("m", "1"), FOUND)
    assert cache.complete(unknown).models["m"]["1"].configuration == FOUND
