"""Contrast of the console's colors: every pair that the pages use, light and dark, by WCAG 2.1 AA."""

from __future__ import annotations

import re

import pytest

from isochrone.console.places import ASSETS_DIRECTORY
from isochrone.console.theme import DARK, LIGHT, PAIRS, contrast, style_sheet


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_every_pair_has_its_contrast(colors: dict[str, str]) -> None:
    found = {(one, other): contrast(colors[one], colors[other]) for one, other, _ in PAIRS}
    assert {(one, other): found[one, other] for one, other, least in PAIRS if found[one, other] < least} == {}


def test_the_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert contrast("#123456", "#123456") == 1.0


def test_both_themes_have_the_same_colors_and_the_style_sheet_uses_no_other() -> None:
    assert set(LIGHT) == set(DARK)
    text = (ASSETS_DIRECTORY / "console.css").read_text()
    assert set(re.findall(r"var\(--([a-z0-9-]+)\)", text)) <= set(LIGHT)
    # A color that is not a variable would not follow the theme, and no test would see its contrast.
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb\(|hsl\(", text)
    assert style_sheet().count("--text:") == 4


def test_assets_name_no_other_host() -> None:
    for file in ASSETS_DIRECTORY.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|@import|innerHTML\s*=[^=]", text), file.name
