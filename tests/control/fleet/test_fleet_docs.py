"""docs/fleet.md: its examples are valid, and errors and plans are as it shows them. Every key is in the reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fleets import parse

from isochrone.control.fleet.planning.plan import plan
from isochrone.control.fleet.settings.autoscale_spec import Autoscale
from isochrone.control.fleet.settings.model_spec import Canary, Compare, Model, Rollout, Slo
from isochrone.control.fleet.settings.observability_spec import Log, Metrics, Observability, Tracing
from isochrone.control.fleet.settings.sections import Control, Gateway, Pool, Store, Traffic
from isochrone.control.fleet.settings.security_spec import Security, Tls
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.settings.problems import SettingsError
from isochrone.settings.sections import Section

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "fleet.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "fleet.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_examples_are_read() -> None:
    names = [parse(text).name for text in blocks("yaml")]
    assert names == ["demo", "workshop", "workshop", "prepared", "elastic", "careful", "mixed", "plant", "guarded"]


def test_the_mistakes_are_told_as_shown() -> None:
    text = blocks("yaml")[1].replace("memory: 2GiB", "memroy: 2GiB")
    shown = blocks("text")[0].splitlines()
    with pytest.raises(SettingsError) as caught:
        parse(text)
    assert str(caught.value) == shown[0]
    with pytest.raises(SettingsError) as caught:
        parse(blocks("yaml")[1].replace("concurrency", "concurency"))
    assert str(caught.value) == shown[1]


def test_the_plan_is_as_shown() -> None:
    before = blocks("yaml")[1]
    after = before.replace("workers: 3", "workers: 4")
    after = after.replace("    memory: 200MiB\n", "    memory: 200MiB\n    slo: {deadline_ms: 50}\n")
    _title, _columns, *rows = blocks("text")[1].splitlines()
    assert steps(before, after) == [sentence(row) for row in rows]
    versions = sentence(blocks("text")[2].strip())
    assert versions in steps(before, after.replace("version: 1", "version: 2"))


def steps(before: str, after: str) -> list[str]:
    return [str(step) for step in plan(parse(before), parse(after))]


def sentence(row: str) -> str:
    """A step of a plan, of its row in the table."""
    action, of, name, what = re.split(" {2,}", row)
    return f"{action} {of} {name}: {what}"


@pytest.mark.parametrize(
    "section",
    [
        Fleet,
        Store,
        Control,
        Gateway,
        Pool,
        Model,
        Slo,
        Rollout,
        Autoscale,
        Canary,
        Compare,
        Traffic,
        Security,
        Tls,
        Observability,
        Metrics,
        Tracing,
        Log,
    ],
    ids=lambda section: section.__name__,
)
def test_every_key_is_in_the_reference(section: type[Section]) -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", REFERENCE, re.MULTILINE))
    assert {field.alias or name for name, field in section.model_fields.items()} <= named
