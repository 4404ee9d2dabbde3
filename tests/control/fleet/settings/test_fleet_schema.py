"""The JSON schema: valid, current as published, and true to what is read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fleets import TEXT
from jsonschema import Draft202012Validator

from isochrone.control.fleet.bundled.writing import files
from isochrone.control.fleet.settings.schema import fleet_schema, schema_text
from isochrone.control.fleet.settings.spec import Fleet

PUBLISHED = Path(__file__).resolve().parents[4] / "docs" / "fleet.schema.json"


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(fleet_schema())


def test_the_published_one_is_current() -> None:
    expected = "run: python -m isochrone.control.fleet.settings.schema docs/fleet.schema.json"
    assert PUBLISHED.read_text(encoding="utf-8") == schema_text(), expected


def test_the_command_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    subprocess.run([sys.executable, "-m", "isochrone.control.fleet.settings.schema", str(path)], check=True, timeout=60)
    assert json.loads(path.read_text()) == fleet_schema()


@pytest.mark.parametrize("text", ["name: a", TEXT, files()["fleet.yaml"].decode()])
def test_what_is_read_fits(text: str) -> None:
    Draft202012Validator(fleet_schema()).validate(yaml.safe_load(text))
    stored = Fleet.model_validate(yaml.safe_load(text)).model_dump(mode="json")
    Draft202012Validator(fleet_schema()).validate(stored)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "name: A",
        "{name: a, pols: {}}",
        "{name: a, pools: {cpu: {memory: 2 elephants}}}",
        "{name: a, models: {m: {version: new}}}",
        "{name: a, models: {m: {rollout: {cutover: slow}}}}",
        "{name: a, models: {m: {rollout: {canary: {steps: [500%]}}}}}",
    ],
)
def test_what_is_wrong_does_not(text: str) -> None:
    assert not Draft202012Validator(fleet_schema()).is_valid(yaml.safe_load(text))


def test_every_key_is_described() -> None:
    schema = fleet_schema()
    for section in (schema, *schema["$defs"].values()):
        for key, field in section["properties"].items():
            # A section that is described where it is defined need not be described again.
            assert field.get("description") or "$ref" in field, key
