"""Outside servers, as the benches and the tests against them start them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.worker.peers.process import PeerUnavailable, running

#: Aborts as often as the file says, then counts as ready.
CRASHES = """
n=$(cat left); echo "started with $n"
[ "$n" = 0 ] && { touch ready; exec sleep 100; }
echo $((n - 1)) > left; kill -ABRT $$
"""


def started(directory: Path, crashes: int, starts: int, script: str = CRASHES) -> list[str]:
    (directory / "left").write_text(str(crashes))
    log = directory / "log"
    with running("it", ["sh", "-c", script], (directory / "ready").exists, log=log, starts=starts) as pid:
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()
    return log.read_text().splitlines()


def test_one_that_crashes_at_its_start_is_started_again(tmp_path: Path) -> None:
    assert started(tmp_path, crashes=2, starts=3) == ["started with 2", "started with 1", "started with 0"]


def test_but_not_for_ever(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="it exited with -6 before it was ready:\nstarted with 2\nstarted with 1"):
        started(tmp_path, crashes=2, starts=2)


def test_nor_where_it_has_said_no(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="it exited with 3 before"):
        started(tmp_path, crashes=2, starts=3, script="exit 3")
