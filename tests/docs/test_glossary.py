"""docs/glossary.md: one concept, one name; the metrics and headers it names exist."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
CODE = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "isochrone").rglob("*.py"))
TERMS = re.findall(r"^\| \*\*([^*]+)\*\* \|", PAGE, re.MULTILINE)


def test_every_term_is_defined_once() -> None:
    assert len(TERMS) > 60
    assert [term for term, times in Counter(TERMS).items() if times > 1] == []


def test_every_term_has_a_sentence() -> None:
    for row in re.findall(r"^\| \*\*.*", PAGE, re.MULTILINE):
        meaning = row.split(" | ")[1]
        assert meaning.endswith("."), row


def test_the_headers_exist() -> None:
    headers = set(re.findall(r"`(x-[a-z-]+|endpoint-load-metrics|server-timing)`", PAGE))
    assert len(headers) > 5
    assert [header for header in headers if header not in CODE] == []


def test_the_metrics_exist() -> None:
    names = set(re.findall(r"`(?:isochrone_gateway|isochrone|nv)_([a-z_]+?)(?:_total|_info)?`", PAGE))
    assert len(names) > 8
    assert [name for name in names if f'{name}"' not in CODE] == []
