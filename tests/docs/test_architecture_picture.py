"""docs/architecture.svg: well-formed, small, and every text inside the picture."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "architecture.svg"
SVG = "{http://www.w3.org/2000/svg}"
#: Width of a character at a size of 13: an upper bound for the usual sans-serif fonts.
CHARACTER = 6.9


def test_it_is_small() -> None:
    assert PICTURE.stat().st_size < 15_000


def test_texts_and_boxes_stay_inside() -> None:
    root = ElementTree.parse(PICTURE).getroot()
    left, top, width, height = (float(number) for number in root.attrib["viewBox"].split())
    assert (left, top) == (0, 0)
    for box in root.iter(f"{SVG}rect"):
        x, y, wide, high = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + wide <= width
        assert 0 <= y <= y + high <= height
    for text in root.iter(f"{SVG}text"):
        length = CHARACTER * len(text.text or "")
        kind = text.attrib.get("class", "")
        anchor = text.attrib.get("text-anchor", "middle" if kind in ("middle", "chip") else "start")
        begin = float(text.attrib["x"]) - length * {"start": 0, "middle": 0.5, "end": 1}[anchor]
        assert begin >= 0, text.text
        assert begin + length <= width, text.text
        assert 0 < float(text.attrib["y"]) < height


def test_it_works_on_dark_pages() -> None:
    assert "prefers-color-scheme: dark" in PICTURE.read_text(encoding="utf-8")
