"""Every package with several modules has a contract of its own: which of them may import which."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


def _packages() -> set[str]:
    found = set()
    for init in SOURCE.rglob("__init__.py"):
        folder = init.parent
        modules = [each for each in folder.iterdir() if each.suffix == ".py" or (each / "__init__.py").exists()]
        if len(modules) > 2:
            found.add(".".join(folder.relative_to(SOURCE).parts))
    return found


def _covered() -> set[str]:
    contracts = tomllib.loads((ROOT / "import-contracts.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = set()
    for contract in contracts:
        if contract["type"] == "layers":
            containers = contract.get("containers", [])
            found |= set(containers)
            if not containers:
                named = [module for layer in contract["layers"] for module in layer.replace("|", " ").split()]
                found |= {module.rpartition(".")[0] for module in named}
    return found


def test_every_package_has_a_contract() -> None:
    assert len(_packages()) > 30
    assert _packages() - _covered() == set()
