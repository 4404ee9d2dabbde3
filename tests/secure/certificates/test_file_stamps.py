"""Stamps change with contents, with replaced files, and with a directory that a link leads to."""

from __future__ import annotations

from pathlib import Path

from isochrone.secure.certificates.file_stamps import stamp_of


def test_a_stamp_changes_with_whatever_a_reader_would_see(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert stamp_of([path]) == (None,)
    path.write_text("x")
    seen = [stamp_of([path])]
    assert stamp_of([path]) == seen[0]
    path.write_text("xy")
    seen.append(stamp_of([path]))
    other = tmp_path / "b"
    other.write_text("xy")
    other.replace(path)
    seen.append(stamp_of([path]))
    path.unlink()
    seen.append(stamp_of([path]))
    assert len(set(seen)) == len(seen)


def test_a_directory_that_is_swapped_is_seen_through_its_link(tmp_path: Path) -> None:
    """As Kubernetes updates a mounted Secret: tls.crt -> ..data/tls.crt, ..data -> ..2026_1."""
    for version in ("..1", "..2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "tls.crt").write_text("same")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "tls.crt").symlink_to("..data/tls.crt")
    before = stamp_of([tmp_path / "tls.crt"])
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert stamp_of([tmp_path / "tls.crt"]) != before
