"""The section ``autoscale`` of a pool: what it accepts, and errors that name what to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from isochrone.control.fleet.reading.parsing import fleet_of, parse_fleet
from isochrone.control.fleet.settings.autoscale_spec import Autoscale
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.settings.problems import SettingsError


def _fleet(pool: str) -> Fleet:
    return parse_fleet(f"name: f\npools:\n  cpu: {pool}\n", "fleet.yaml", Path("/"))


@pytest.mark.parametrize("written", ["true", "{}"])
def test_true_and_an_empty_section_are_all_defaults(written: str) -> None:
    fleet = _fleet(f"{{max: 4, autoscale: {written}}}")
    assert fleet.pools["cpu"].autoscale == Autoscale()
    assert fleet_of(fleet.model_dump(mode="json")) == fleet


@pytest.mark.parametrize("written", ["false", "null"])
def test_false_is_none(written: str) -> None:
    assert _fleet(f"{{autoscale: {written}}}").pools["cpu"].autoscale is None


def test_a_pool_that_may_be_empty_may_start_empty() -> None:
    pool = _fleet("{workers: 0, max: 3, autoscale: {zero_after_seconds: 10min, slo_ms: 20ms}}").pools["cpu"]
    assert pool.autoscale is not None
    assert (pool.autoscale.zero_after_seconds, pool.autoscale.slo_ms) == (600.0, 20.0)
    assert pool.may_serve
    assert not pool.processes


@pytest.mark.parametrize(
    ("pool", "key", "expected"),
    [
        ("{autoscale: true}", "max", "the most workers that autoscale may start, at least 1, given nothing"),
        ("{addresses: ['h:1'], max: 2, autoscale: true}", "autoscale", "nothing, since addresses names servers"),
        ("{workers: 0, max: 2, autoscale: true}", "workers", "at least 1: a pool starts empty only with auto"),
        (
            "{min: 1, max: 2, autoscale: {zero_after_seconds: 9}}",
            "autoscale.zero_after_seconds",
            "nothing, or min: 0, since min is 1",
        ),
        (
            "{max: 2, autoscale: {zero_after_seconds: 9}}",
            "autoscale.zero_after_seconds",
            "at least 30, as start_up_seconds: a worker must serve before it is idle, given 9",
        ),
        ("{workers: 5, max: 2, autoscale: true}", "workers", "at most max, which is 2, given 5"),
        ("{workers: 1, min: 2, max: 3, autoscale: true}", "workers", "at least min, which is 2, given 1"),
        (
            "{max: 3, warm: 1, autoscale: {cost_per_worker: 2, cost_cap: 3}}",
            "autoscale.cost_cap",
            "at least 4, the cost of the fewest workers (cost_per_worker, min and warm), given 3",
        ),
        ("{max: 3, autoscale: {start_up_seconds: 0}}", "autoscale.start_up_seconds", "a number above 0, given 0"),
        ("{max: 3, autoscale: {down_share: 150%}}", "autoscale.down_share", "a share such as 5% or 0.05"),
        ("{max: 3, autoscale: {has_forecast: true}}", "autoscale.has_forecast", "a known key"),
        # Only the third worker would listen on 8000.
        ("{max: 3, first_port: 7992, autoscale: true}", "first_port", "ports that gateways.gw.listen does not take"),
    ],
)
def test_errors_name_the_key(pool: str, key: str, expected: str) -> None:
    with pytest.raises(SettingsError) as error:
        _fleet(pool)
    assert f"pools.cpu.{key}: expected {expected}" in str(error.value)
