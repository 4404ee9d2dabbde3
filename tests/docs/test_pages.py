"""README and docs: links, anchors, paths, flags and settings that they name exist."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from typer.main import get_command

import isochrone
from documented import EXAMPLES, PAGES, ROOT, blocks
from isochrone.cli.main import app
from isochrone.cli.triton.flags import FLAGS
from isochrone.doctor.checks.catalog import CHECKS
from isochrone.gateway.policies import NAMES
from isochrone.gateway.resilience.outliers import OutlierRules
from isochrone.gateway.rules.file import load_rules, parse_rules
from isochrone.gateway.rules.gateway_rules import ModelRules

#: Flags of other programs.
_FOREIGN_FLAGS = (
    *("--auto-compaction-retention", "--auto-compaction-mode", "--quota-backend-bytes"),
    "--enable-feature",
)

#: Functions of the package itself.
_PYTHON_API = tuple(f"isochrone.{name}" for name in isochrone.__all__)

#: Files of another project, and files that the reader makes.
_FOREIGN_PATHS = ("park/param.py", "examples/models")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_pages_and_headings() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", page.read_text()):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}#{anchor}"


def test_paths_and_packages_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`([^`\s]+)`", page.read_text()):
            if name in _FOREIGN_PATHS or name in _PYTHON_API:
                continue
            if re.fullmatch(r"isochrone(\.[a-z_]+)+", name):
                path = ROOT / "src" / name.replace(".", "/")
                assert path.is_dir() or path.with_suffix(".py").is_file(), f"{page.name} names {name}"
            elif re.fullmatch(r"(src|tests|bench|examples|scripts)/[\w./-]+|[a-z]+(/\w+)+\.py", name):
                places = (ROOT, ROOT / "src" / "isochrone", ROOT / "docs")
                assert any((place / name).exists() for place in places), f"{page.name} names {name}"


def test_every_page_is_linked() -> None:
    linked = {
        (page.parent / target).resolve() for page in PAGES for target in re.findall(r"\]\(([^)#:]+)", page.read_text())
    }
    alone = [page for page in PAGES if page.resolve() not in linked and page.parent.resolve() not in linked]
    assert [page.name for page in alone if page.name != "README.md"] == []


def test_flags_exist() -> None:
    """The reference of the command line has every flag; another test keeps it current."""
    known = set(re.findall(r"--[a-z0-9-]+", (ROOT / "docs" / "reference" / "cli.md").read_text()))
    known |= {f"--{flag.name}" for flag in FLAGS} | {"--help", "--install-completion", "--show-completion"}
    for page in PAGES:
        for flag in re.findall(r"`(--[a-z0-9-]+)", page.read_text()):
            assert flag in known or flag in _FOREIGN_FLAGS, f"{page.name} names {flag}"


def test_the_page_of_commands_names_every_command() -> None:
    rows = re.findall(r"(?m)^\| (`[^|]*`) \|", (ROOT / "docs" / "commands.md").read_text())
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    commands = {name for name, command in get_command(app).commands.items() if not command.hidden}  # type: ignore[attr-defined]
    assert commands - {"tritonserver"} <= named


def test_the_gateways_page_shows_valid_rules_and_true_defaults() -> None:
    shown = [text for page, text in blocks("yaml") if page.name == "gateway.md"]
    assert len(shown) >= 7
    for number, text in enumerate(shown):
        rules = parse_rules(text, f"block {number}")
        assert rules.defaults == ModelRules()
        assert rules.outliers == OutlierRules()
    assert load_rules(EXAMPLES / "traffic.yaml").models.keys() == {"detector", "pipeline", "preprocess"}


def test_the_gateways_page_names_every_policy() -> None:
    table = (ROOT / "docs" / "gateway.md").read_text().partition("\n## Policies")[2].partition("\n## ")[0]
    first_cells = [row.split(" | ")[0] for row in table.splitlines() if row.startswith("| `")]
    assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} == set(NAMES)


def test_the_doctors_page_names_every_check_and_what_fix_changes() -> None:
    table = (ROOT / "docs" / "doctor.md").read_text().partition("\n## Checks")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([^|]+) \| [^|]+ \|$", table, re.MULTILINE)
    assert [name for name, _ in rows] == [check.__name__ for check in CHECKS]
    sources = {check.__module__: inspect.getsource(sys.modules[check.__module__]) for check in CHECKS}
    for check, (name, fix) in zip(CHECKS, rows, strict=True):
        body = sources[check.__module__].partition(f"def {name}(")[2].partition("\ndef ")[0]
        assert ("Change(" in body) is (fix == "`--fix`"), name


def test_the_parameters_of_models_exist() -> None:
    code = "".join(path.read_text() for path in (ROOT / "src" / "isochrone" / "worker").rglob("*.py"))
    table = (ROOT / "docs" / "serving.md").read_text().partition("### Our own `parameters`")[2].partition("\n## ")[0]
    first_cells = [row.split(" | ")[0] for row in table.splitlines() if row.startswith("| `")]
    keys = [key for cell in first_cells for key in re.findall(r"`([\w.]+)`", cell)]
    assert len(keys) >= 15
    for key in keys:
        assert f'"{key}"' in code, key


def test_the_headers_of_the_protocol_are_listed() -> None:
    """Every ``x-isochrone-`` header of the code is in the table, and no other."""
    source = (ROOT / "src" / "isochrone").rglob("*.py")
    code = set(re.findall(r"[\"'](x-isochrone-[a-z-]+)[\"']", "".join(path.read_text() for path in source)))
    section = (ROOT / "docs" / "protocol.md").read_text().partition("\n## Headers")[2].partition("\n## ")[0]
    # What the command line and the console send to the control API.
    of_control = {"x-isochrone-user", "x-isochrone-page-token"}
    assert set(re.findall(r"x-isochrone-[a-z-]+", section)) == code - of_control
