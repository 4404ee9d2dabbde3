"""The page about fuzzing has every target, with its parsers and its promise; and the parsers exist."""

from __future__ import annotations

import re

from documented import ROOT
from fuzz.targets import TARGETS


def test_the_page_lists_the_targets_as_they_are() -> None:
    table = (ROOT / "docs" / "fuzzing.md").read_text().partition("\n## Targets")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", table, re.M)
    listed = [(name, tuple(re.findall(r"`([\w.]+)`", parsers)), promise) for name, parsers, promise in rows]
    assert listed == [(target.name, target.parsers, target.promise) for target in TARGETS]


def test_the_runs_are_those_of_targets() -> None:
    table = (ROOT / "docs" / "fuzzing.md").read_text().partition("\n## Runs")[2].partition("\nFound")[0]
    listed = re.findall(r"^\| `(\w+)` \| \d+ \| [\d,]+ \| (?:\d+|–) \|$", table, re.M)
    assert listed == [target.name for target in TARGETS]
