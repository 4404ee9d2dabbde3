"""docs/kubernetes.md: its fleets can be rendered, and its names are those that are rendered."""

from __future__ import annotations

import re

from rendered_fleets import ROOT, documents_of, render

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()


def test_every_fleet_of_the_page_can_be_rendered() -> None:
    fleets = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(fleets) >= 3
    for text in fleets:
        assert documents_of(render(text, name=False))


def test_every_rendered_kind_is_explained() -> None:
    table = PAGE.partition("## What is rendered")[2].partition("\n## ")[0]
    kinds = {document["kind"] for document in documents_of(render("pools: {cpu: {max: 3}}\n"))}
    names = {"NetworkPolicy": "NetworkPolicies", "ServiceAccount": "ServiceAccounts"}
    assert [kind for kind in kinds if names.get(kind, kind) not in table] == []
