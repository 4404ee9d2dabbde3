"""Who signed what workers serve: from a worker's index to the record that status shows."""

from __future__ import annotations

import json

import pytest

from isochrone.control.leader.worker_reports import signers
from isochrone.control.rollout.observed_state import Loaded, ObservedWorker
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.workers.control import ServedState, WorkerControl

RECORD = WorkerRecord("cpu-1", "127.0.0.1", 1, 1)
PROVENANCE = {"signer": "release@example.com", "key": "ab" * 32, "at": "2026-11-18T12:00:00Z", "source": "run-17"}
SUMMARY = "release@example.com at 2026-11-18T12:00:00Z from run-17"


@pytest.mark.parametrize(
    ("provenance", "expected"),
    [
        (PROVENANCE, SUMMARY),
        ({"signer": "key sha256:ab", "key": "ab"}, "key sha256:ab"),
        ({"signer": 3}, ""),
        ("release", ""),
        (None, ""),
    ],
)
def test_an_index_states_who_signed(provenance: object, expected: str) -> None:
    row = {"name": "m", "version": "1", "state": "READY", "digest": "sha256:cd", "provenance": provenance}
    found = WorkerControl(RECORD).parsed_index(json.dumps([row]).encode())
    assert found == {"m": {"1": ServedState("READY", "cd", "", expected)}}


def test_ready_versions_are_listed_with_every_signer_that_workers_found() -> None:
    workers = [
        ObservedWorker(RECORD, {"m": {"1": Loaded("READY", signed_by="b"), "2": Loaded("LOADING", signed_by="c")}}),
        ObservedWorker(RECORD, {"m": {"1": Loaded("READY", signed_by="a")}, "other": {"1": Loaded("READY")}}),
    ]
    assert signers(workers) == {"m": {"1": "a; b"}}
    assert signers([]) == {}


def test_nothing_is_concluded_before_all_workers_have_reported() -> None:
    assert signers([ObservedWorker(RECORD, {}), ObservedWorker(RECORD)]) is None
