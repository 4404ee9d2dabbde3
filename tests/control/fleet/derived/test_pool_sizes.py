"""The fleet at its present size, and the settings of its autoscalers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.autoscaler.settings import AutoscalerSettings
from isochrone.control.fleet.derived.locations import repositories_by_worker
from isochrone.control.fleet.derived.pool_autoscaling import autoscaler_settings
from isochrone.control.fleet.derived.pool_sizes import sized
from isochrone.control.fleet.derived.processes import processes
from isochrone.control.fleet.settings.autoscale_spec import Autoscale
from isochrone.control.fleet.settings.process_names import worker_names
from isochrone.control.fleet.settings.spec import Fleet


@st.composite
def pools(draw: st.DrawFn) -> dict[str, Any]:
    least, more = draw(st.integers(0, 4)), draw(st.integers(0, 6))
    most = max(1, least + more)
    section = draw(st.sampled_from([None, {}, {"zero_after_seconds": 60}]))
    if section and least:
        section = {}
    lowest = least if section is None or section else max(1, least)
    return {
        "min": least,
        "max": most,
        "workers": draw(st.integers(lowest, most)),
        "warm": draw(st.integers(0, most)),
        "autoscale": section,
    }


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), pools(), min_size=1), st.data())
def test_sizes_stay_within_bounds_and_change_only_autoscaled_pools(given: dict[str, Any], data: st.DataObject) -> None:
    fleet = Fleet.model_validate({"name": "f", "pools": given})
    sizes = data.draw(st.dictionaries(st.sampled_from(["a", "b", "c", "gone"]), st.integers(-3, 20)))
    changed = sized(fleet, sizes)
    for name, pool in changed.pools.items():
        before = fleet.pools[name]
        assert pool.model_copy(update={"workers": before.workers}) == before
        if before.autoscale is None or name not in sizes:
            assert pool.workers == before.workers
            continue
        least = 0 if before.autoscale.zero_after_seconds else max(1, before.min)
        assert before.max is not None
        assert least <= pool.workers <= before.max
        assert pool.workers == sizes[name] or sizes[name] < least or sizes[name] > before.max
        assert pool.processes == (pool.workers + pool.warm if pool.workers else 0)
    assert sized(changed, sizes) == changed
    # What is valid stays valid: the file was checked at its largest size.
    assert Fleet.model_validate(changed.model_dump(mode="json")).pools.keys() == fleet.pools.keys()


@given(st.integers(0, 8), st.integers(0, 8), st.sampled_from(["any", "apart", "together"]))
def test_another_size_adds_or_removes_the_highest_numbers_and_changes_no_other_process(
    one: int, other: int, placement: str
) -> None:
    pool = {"max": 8, "warm": 1, "placement": placement, "autoscale": {"zero_after_seconds": 60}, "first_port": 9100}
    fleet = Fleet.model_validate({"name": "f", "pools": {"cpu": pool}})
    few, many = (
        processes(sized(fleet, {"cpu": size}), Path("/srv"), "ray") for size in (min(one, other), max(one, other))
    )
    assert few.items() <= many.items()
    assert list(many)[: len(few)] == list(few)


def test_a_fleet_without_sizes_is_the_same_object() -> None:
    fleet = Fleet.model_validate({"name": "f", "pools": {"cpu": {"max": 3, "workers": 2, "autoscale": True}}})
    assert sized(fleet, {}) is fleet
    assert sized(fleet, {"cpu": 2}) is fleet
    assert worker_names(sized(fleet, {"cpu": 3}), "cpu") == ["cpu-1", "cpu-2", "cpu-3"]
    assert sorted(repositories_by_worker(fleet, Path("/srv"))) == ["cpu-1", "cpu-2", "cpu-3"]


def test_autoscaler_settings_come_from_the_pool_its_section_and_its_models() -> None:
    fleet = Fleet.model_validate(
        {
            "name": "f",
            "pools": {
                "plain": {},
                "all": {"min": 2, "workers": 2, "max": 9, "autoscale": True},
                "own": {"max": 3, "autoscale": {"slo_ms": 70, "zero_after_seconds": "5min", "forecast": False}},
            },
            "models": {
                "a": {"slo": {"deadline_ms": 50}, "pools": ["all"]},
                "b": {"slo": {"deadline_ms": 20}, "pools": ["all", "own"]},
                "c": {"pools": ["all"]},
            },
        }
    )
    assert autoscaler_settings(fleet, "plain") is None
    found = autoscaler_settings(fleet, "all")
    assert found == AutoscalerSettings(min_workers=2, max_workers=9, slo_seconds=0.02, start_up_seconds=30)
    found = autoscaler_settings(fleet, "own")
    assert found is not None
    assert (found.min_workers, found.max_workers, found.slo_seconds) == (1, 3, 0.07)
    assert (found.zero_after_seconds, found.has_forecast) == (300.0, False)


@pytest.mark.parametrize(("deadline", "slo"), [(0, AutoscalerSettings().slo_seconds), (80, 0.08)])
def test_models_that_the_file_does_not_name_have_the_deadline_of_the_defaults(deadline: float, slo: float) -> None:
    given = {
        "name": "f",
        "pools": {"cpu": {"max": 2, "autoscale": {}}},
        "defaults": {"slo": {"deadline_ms": deadline}},
    }
    found = autoscaler_settings(Fleet.model_validate(given), "cpu")
    assert found is not None
    assert found.slo_seconds == slo


def test_defaults_of_the_section_are_those_of_the_autoscaler() -> None:
    section, settings = Autoscale(), AutoscalerSettings()
    for key in ("deviations", "trend_seconds", "down_seconds", "down_share", "hysteresis"):
        assert getattr(section, key) == getattr(settings, key)
    assert section.forecast == settings.has_forecast
