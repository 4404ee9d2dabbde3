"""What needs no agreement: what was agreed to and is under way, and what a request does not cause."""

from __future__ import annotations

import pytest

from fleet_records import ALL, CONTEXT, FLEET, KEYS, Records, file_of, renamed, served
from isochrone.control.requests.fleet import NotAgreed, apply_fleet, scale
from isochrone.control.state.records import ReconciledRecord
from isochrone.control.state.rollout_records import ABORTED, ABORTING, PREPARING, Change


def _renaming() -> Records:
    """Pool cpu is being renamed, which was agreed to."""
    records = Records(versions=ALL)
    assert records.apply(apply_fleet(records.view, file_of(renamed(FLEET)), CONTEXT, agreed=("pool cpu",)))
    return records


def test_scaling_beside_a_kept_pool_takes_nothing_away() -> None:
    records = _renaming()
    for reconciled in (1, 2):
        records.put(KEYS.reconciled, ReconciledRecord(reconciled))
        decision = scale(records.view, "metal", 3, CONTEXT)
        assert [str(step) for step in decision.answer.steps] == ["start pool metal: metal-3"]
        assert set(decision.answer.record.kept) == {"cpu"}


def test_scaling_asks_for_agreement_to_an_empty_pool_alone() -> None:
    records = Records("name: plant\npools: {cpu: {workers: 2}}", versions=served(detector="1"))
    decision = scale(records.view, "cpu", 3, CONTEXT)
    assert [str(step) for step in decision.answer.steps] == ["start pool cpu: cpu-3"], (
        "all models of the repository stay"
    )
    with pytest.raises(NotAgreed, match="takes away pool cpu;"):
        scale(records.view, "cpu", 0, CONTEXT)
    assert scale(records.view, "cpu", 0, CONTEXT, agreed=True).operations


def test_what_was_agreed_to_and_is_under_way_is_not_asked_again() -> None:
    records = _renaming()
    again = file_of(renamed(FLEET) + "# again")
    # The leader has not seen it yet.
    for file in (file_of(renamed(FLEET)), again):
        assert set(apply_fleet(records.view, file, CONTEXT).answer.record.kept) == {"cpu"}
    # Its rollouts move the models.
    records.put(KEYS.reconciled, ReconciledRecord(2, dict.fromkeys(ALL, "1")))
    change = {"tracker": Change("1", "1", pools=("metal",), left=("cpu",))}
    records.rollout("r1", PREPARING, change)
    for file in (file_of(renamed(FLEET)), again):
        assert not any(step.action == "retire" for step in apply_fleet(records.view, file, CONTEXT).answer.steps)
    # On their way back, or aborted: only the file that was agreed to needs no more agreement.
    for state, asked in ((PREPARING, "stop"), (ABORTING, ""), (ABORTED, "")):
        records.rollout("r1", state, change, abort_asked=asked)
        with pytest.raises(NotAgreed, match="takes away pool cpu"):
            apply_fleet(records.view, again, CONTEXT)
        assert apply_fleet(records.view, file_of(renamed(FLEET)), CONTEXT).operations


def test_a_model_that_goes_after_a_rollout_is_not_asked_about_again() -> None:
    records = Records(versions=ALL)
    text = FLEET.replace(", with: [reranker]", "").replace("  reranker: {version: 1, pools: [cpu]}\n", "")
    assert records.apply(apply_fleet(records.view, file_of(text), CONTEXT, agreed=True))
    records.put(KEYS.reconciled, ReconciledRecord(2, dict.fromkeys(ALL, "1"), retiring=("reranker",), rollouts=("r1",)))
    assert apply_fleet(records.view, file_of(text), CONTEXT).operations == ()
    # The rollout was aborted, and the model stays until somebody agrees again.
    records.put(KEYS.reconciled, ReconciledRecord(2, dict.fromkeys(ALL, "1")))
    with pytest.raises(NotAgreed, match="takes away model reranker"):
        apply_fleet(records.view, file_of(text), CONTEXT)
