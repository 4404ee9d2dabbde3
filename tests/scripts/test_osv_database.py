"""A copy of OSV's database: which versions a vulnerability affects, and what pip-audit is answered."""

from __future__ import annotations

import json
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from scripts.osv_database import OsvDatabase, serving


def entry(identity: str, *events: dict[str, str], **more: Any) -> dict[str, Any]:
    package = {"name": "Some.Thing", "ecosystem": "PyPI"}
    affected = {
        "package": package,
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
        **more.pop("affected", {}),
    }
    return {"id": identity, "modified": "2026-02-03T00:00:00Z", "affected": [affected], **more}


def database(path: Path, *entries: dict[str, Any]) -> OsvDatabase:
    for each in entries:
        (path / f"{each['id']}.json").write_text(json.dumps(each))
    return OsvDatabase(path)


def affecting(given: OsvDatabase, version: str) -> list[str]:
    return [each["id"] for each in given.affecting("some-thing", version)]


def test_versions_in_a_range_and_versions_that_are_listed(tmp_path: Path) -> None:
    given = database(
        tmp_path,
        entry("A", {"introduced": "0"}, {"fixed": "1.5"}),
        entry("B", {"introduced": "1.2"}, {"last_affected": "2.0"}),
        entry("C", affected={"versions": ["1.4"]}),
        entry("D", {"introduced": "1.0"}, {"fixed": "1.1"}, {"introduced": "3"}),
        entry("E", {"introduced": "0"}, withdrawn="2026-01-01T00:00:00Z"),
    )
    assert affecting(given, "0.1.dev0") == ["A"]
    assert affecting(given, "1.0.5") == ["A", "D"]
    assert affecting(given, "1.4") == ["A", "B", "C"]
    assert affecting(given, "1.5") == ["B"]
    assert affecting(given, "2.0") == ["B"]
    assert affecting(given, "2.0.1") == []
    assert affecting(given, "4") == ["D"]
    assert given.affecting("something", "1.4") == []
    assert (given.count, given.newest) == (5, "2026-02-03T00:00:00Z")


@given(st.lists(st.integers(0, 30), min_size=2, max_size=6, unique=True), st.integers(0, 31))
def test_ranges_in_any_order_are_half_open_intervals(bounds: list[int], at: int) -> None:
    ordered = sorted(bounds)
    events = [{("introduced", "fixed")[index % 2]: f"1.{bound}"} for index, bound in enumerate(ordered)]
    inside = any(ordered[i] <= at and (i + 1 == len(ordered) or at < ordered[i + 1]) for i in range(0, len(ordered), 2))
    from scripts.osv_database import _is_within

    assert _is_within(list(reversed(events)), Version(f"1.{at}")) is inside


def test_other_ecosystems_are_left_out_and_zip_files_are_read(tmp_path: Path) -> None:
    other = entry("N", {"introduced": "0"})
    other["affected"][0]["package"]["ecosystem"] = "npm"
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("N.json", json.dumps(other))
        archive.writestr("A.json", json.dumps(entry("A", {"introduced": "0"})))
        archive.writestr("README", "no vulnerability")
    given = OsvDatabase(tmp_path / "all.zip")
    assert given.count == 1
    assert affecting(given, "7") == ["A"]


def test_a_database_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a zip file or a directory"):
        OsvDatabase(tmp_path)


def test_what_is_asked_over_http_is_answered_as_osv_does(tmp_path: Path) -> None:
    with serving(database(tmp_path, entry("A", {"introduced": "0"}, {"fixed": "2"}))) as url:
        assert url.startswith("http://127.0.0.1:")
        for version, found in (("1", ["A"]), ("2", [])):
            asked = {"package": {"name": "some-thing", "ecosystem": "PyPI"}, "version": version}
            with urllib.request.urlopen(url, data=json.dumps(asked).encode()) as answer:
                assert [each["id"] for each in json.loads(answer.read()).get("vulns", [])] == found
