"""The generated pages are current: ``make docs`` would change nothing."""

from __future__ import annotations

import runpy
from pathlib import Path

from isochrone.control.fleet.settings.schema import fleet_schema

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


def test_the_reference_of_fleet_yaml_is_current() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "fleet_reference.py"))["page"]
    assert (REFERENCE / "fleet.md").read_text(encoding="utf-8") == page(fleet_schema()), "run: make docs"


def test_the_reference_of_the_command_line_is_current() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "cli_reference.py"))["page"]
    assert (REFERENCE / "cli.md").read_text(encoding="utf-8") == page(), "run: make docs"


def test_every_section_of_fleet_yaml_has_a_heading() -> None:
    text = (REFERENCE / "fleet.md").read_text(encoding="utf-8")
    sections = ("store", "control", "gateways.NAME", "pools.NAME", "models.NAME", "defaults", "traffic", "security")
    assert all(f"\n## `{section}`\n" in text for section in sections)
    assert len(fleet_schema()["$defs"]) == text.count("\n## `")
