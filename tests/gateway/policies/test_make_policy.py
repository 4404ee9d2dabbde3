"""Policies by name, and what is said when a name or an option is wrong."""

from __future__ import annotations

from random import Random

import pytest

from isochrone.errors import ConfigError
from isochrone.gateway import policies


@pytest.mark.parametrize("name", [name for name in policies.NAMES if name != "learned"])
def test_every_name_makes_the_policy_of_that_name(name: str) -> None:
    assert policies.make(name, Random(0)).name == name


def test_the_default_is_one_of_the_names() -> None:
    assert policies.DEFAULT in policies.NAMES


def test_the_error_for_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as error:
        policies.make("least_loaded", Random(0))
    for word in ("'least_loaded'", *policies.NAMES):
        assert word in str(error.value)


def test_the_error_for_an_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as error:
        policies.make("prequal", Random(0), quantil=0.5)
    for word in ("policy prequal", "quantil", "0.5", *policies.known_options("prequal")):
        assert word in str(error.value)


def test_a_policy_without_options_says_so() -> None:
    with pytest.raises(ConfigError, match="policy round_robin: weight: expected no options, given 3"):
        policies.make("round_robin", Random(0), weight=3)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("prequal", "quantile", 1.5),
        ("prequal", "pool", 1),
        ("prequal", "pool", 16.0),
        ("prequal", "max_age_s", 0),
        ("prequal", "probes_per_query", "3"),
        ("prequal", "tolerance", 0.9),
        ("consistent_hash", "load_factor", 0.5),
        ("consistent_hash", "points", True),
        ("maglev", "table_size", 1000),
        ("token_bucket", "when_empty", "wait"),
        ("token_bucket", "rate", 0),
        ("latency_weighted", "floor", 0),
        ("peak_ewma", "decay_s", -1),
        ("weighted_round_robin", "period_s", float("nan")),
    ],
)
def test_the_error_for_a_bad_value_names_its_key(name: str, key: str, value: object) -> None:
    with pytest.raises(ConfigError) as error:
        policies.make(name, Random(0), **{key: value})
    assert error.value.where == f"policy {name}"
    assert error.value.key == key
    assert error.value.given == repr(value)


@pytest.mark.parametrize("name", [name for name in policies.NAMES if name != "learned"])
def test_defaults_are_good_values(name: str) -> None:
    policies.make(name, Random(0), **policies.known_options(name))
