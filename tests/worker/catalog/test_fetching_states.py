"""The states of a model while its files are fetched."""

from __future__ import annotations

from isochrone.worker.catalog.states import LOADING, READY, UNAVAILABLE, VersionStates


def test_progress_is_the_reason_of_versions_that_load() -> None:
    states = VersionStates()
    states.set("m", "1", READY)
    fetching = states.fetching("m", ["1", "2"])
    fetching.show("fetching 1.0 of 2.0 GB")
    fetching.show("fetching 2.0 of 2.0 GB")
    assert states.rows([]) == [("m", "1", READY, ""), ("m", "2", LOADING, "fetching 2.0 of 2.0 GB")]
    fetching.end()
    assert states.rows([]) == [("m", "1", READY, "")]


def test_a_report_that_comes_late_changes_nothing() -> None:
    states = VersionStates()
    fetching = states.fetching("m", ["1"])
    fetching.end()
    fetching.show("fetching")
    assert states.rows([]) == []


def test_without_versions_it_is_the_model_that_loads() -> None:
    states = VersionStates()
    fetching = states.fetching("m", [])
    fetching.show("fetching")
    assert states.get("m", "") == (LOADING, "fetching")
    assert "it is loading" in str(states.unserved("m", ""))
    fetching.end()
    assert not states.knows("m")


def test_an_earlier_failure_comes_back_and_a_new_one_stays() -> None:
    states = VersionStates()
    states.set("m", "1", UNAVAILABLE, "earlier")
    states.set("m", "2", UNAVAILABLE, "earlier")
    fetching = states.fetching("m", ["1", "2"])
    fetching.show("fetching")
    states.set("m", "2", UNAVAILABLE, "new")
    fetching.end()
    assert states.of("m") == {"1": (UNAVAILABLE, "earlier"), "2": (UNAVAILABLE, "new")}
