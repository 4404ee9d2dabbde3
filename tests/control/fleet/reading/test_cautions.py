"""What an apply warns of: unsigned versions that are served, and rules that let nobody apply."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_records import file_of, served
from isochrone.control.fleet.reading.cautions import cautions
from isochrone.control.state.records import Assignment, FleetRecord, Split
from isochrone.secure.signing.signer import Signer
from signed_models import sign_version
from signing_keys import Key, make_key

FLEET = "name: plant\nrepository: models\nmodels: {detector: {version: 1}, tracker: {version: 1}}\n"
DIGEST = "a" * 64


@pytest.fixture
def key(tmp_path: Path) -> Key:
    """The signer that is trusted, beside two models of two versions."""
    for name in ("detector", "tracker"):
        for version in "12":
            (tmp_path / "models" / name / version).mkdir(parents=True)
            (tmp_path / "models" / name / version / "model.onnx").write_bytes(b"bytes")
    return make_key(tmp_path)


def warned(directory: Path, text: str, before: str | None, now: dict[str, Assignment]) -> dict[str, str]:
    file = file_of(text, str(directory))
    record = None
    if before is not None:
        spec = file_of(before, str(directory)).fleet.model_dump(mode="json")
        record = FleetRecord(1, before, spec, str(directory))
    return cautions(file, record, now)


def trusting(*keys: Key) -> str:
    return f"{FLEET}security: {{signatures: {{trust: [{', '.join(str(each.public) for each in keys)}]}}}}\n"


def test_served_versions_without_a_trusted_signature_are_named(tmp_path: Path, key: Key) -> None:
    models, now = tmp_path / "models", served(detector="1", tracker="1")
    unsigned = warned(tmp_path, trusting(key), FLEET, now)["security.signatures"]
    assert "no trusted signature on detector 1, tracker 1;" in unsigned
    sign_version(Signer(key.private), models / "detector")
    assert "signature on tracker 1;" in warned(tmp_path, trusting(key), FLEET, now)["security.signatures"]
    other = make_key(tmp_path, "mallory")
    sign_version(Signer(other.private), models / "tracker")
    assert "signature on tracker 1;" in warned(tmp_path, trusting(key), FLEET, now)["security.signatures"]
    assert warned(tmp_path, trusting(key, other), FLEET, now) == {}
    # A key that is taken away is a new requirement, too.
    assert (
        "signature on tracker 1;" in warned(tmp_path, trusting(key), trusting(key, other), now)["security.signatures"]
    )
    canary = now | {"detector": Assignment("1", pools=("cpu",), canary=Split("2", weight=0.1))}
    assert "signature on detector 2;" in warned(tmp_path, trusting(key, other), FLEET, canary)["security.signatures"]


def test_what_changes_nothing_about_signatures_warns_of_nothing(tmp_path: Path, key: Key) -> None:
    now = served(detector="1", tracker="1")
    assert warned(tmp_path, trusting(key), trusting(key), now) == {}
    assert warned(tmp_path, FLEET, trusting(key), now) == {}
    assert warned(tmp_path, FLEET, FLEET, now) == {}
    # Nothing is served yet, by a fleet that starts or by one that is new to a model.
    assert warned(tmp_path, trusting(key), None, {}) == {}
    # A model that goes needs no signature, nor one whose repository cannot be read from here.
    assert warned(tmp_path, trusting(key), FLEET, served(gone="1")) == {}
    assert warned(tmp_path, trusting(key).replace("models\n", "elsewhere\n"), FLEET, now) == {}


@pytest.mark.parametrize("roles", ["operator", "admin"])
def test_rules_by_which_nobody_may_apply_are_named(tmp_path: Path, roles: str) -> None:
    access = tmp_path / "access.yaml"
    access.write_text(f"tokens: {{ada: {{sha256: {DIGEST}}}}}\nassign: [{{to: ['token:ada'], roles: [{roles}]}}]")
    text = f"{FLEET}security: {{access: access.yaml}}\n"
    for before in (None, FLEET, text):
        found = warned(tmp_path, text, before, {})
        assert list(found) == ([] if roles == "admin" else ["security.access"])
        assert all("nobody will be allowed to apply a file" in each and str(access) in each for each in found.values())
