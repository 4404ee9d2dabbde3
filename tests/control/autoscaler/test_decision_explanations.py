"""What a decision says of the figures that led to it."""

from __future__ import annotations

from isochrone.control.autoscaler.decision import Decision, Inputs, Reason


def test_an_unknown_load_is_said() -> None:
    said = Decision(3, Reason.STALE, Inputs(ready=2, pending=1)).explanation
    assert said == "the load is not known; 2 ready, 1 starting"
    silent = Inputs(ready=2, problem="gateway gw-2 does not answer")
    assert Decision(2, Reason.STALE, silent).explanation == (
        "the load is not known: gateway gw-2 does not answer; 2 ready"
    )


def test_the_figures_of_a_decision() -> None:
    given = Inputs(1200.0, 3.5, 0.0125, 1300.0, 200.0, 1500.0, 400.0, 1200.0, 3, 0, 1, 0, 5)
    said = Decision(4, Reason.MAXIMUM, given).explanation
    assert said == (
        "1,200 requests/s, 1,300 expected and 200 for errors; 1,500 of the daily pattern; 3.5 refused; "
        "12.5 ms of waiting; 400 requests/s for each worker; 5 workers needed; 3 ready, 1 standing by"
    )


def test_an_empty_pool() -> None:
    assert Decision(0, Reason.IDLE, Inputs(0.0)).explanation.endswith("; no workers")
