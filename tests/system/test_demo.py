"""``make demo`` as a newcomer sees it: what it shows, when it calls itself failed, and nothing left behind."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import psutil
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMAND = [sys.executable, "-u", str(EXAMPLES / "demo.py"), "--seconds", "0.5", "--free-ports"]
CHANGES = ["strict, 1 → 2", "rollback, 2 → 1", "fast, 1 → 2"]


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is killed cannot clear up after itself."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def sightings(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import sightings as module

    return module


@pytest.mark.long
def test_the_demo_shows_a_fleet_that_changes_under_load_and_ends_well() -> None:
    result = subprocess.run(COMMAND, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=250, check=False)
    shown = result.stdout
    assert result.returncode == 0, shown + result.stderr
    assert result.stderr == ""
    rows = re.findall(r"^(\S.*?) +([\d,]+) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +(\d(?:, \d)?)$", shown, re.MULTILINE)
    assert [row[0] for row in rows[::2]] == ["before", "after it", "after it", "after it"]
    assert [row[6] for row in rows[::2]] == ["1", "2", "1", "2"]
    assert [row[0] for row in rows[1::2]] == CHANGES
    for _, requests, failed, *times, _ in rows:
        assert int(requests.replace(",", "")) > 10
        assert failed == "0"
        assert [float(time) for time in times] == sorted(float(time) for time in times)
    total = re.search(r"^([\d,]+) requests, 300 a second", shown, re.MULTILINE)
    assert total is not None
    assert int(total[1].replace(",", "")) == sum(int(row[1].replace(",", "")) for row in rows)
    for change in CHANGES[:2]:
        assert re.search(rf"^{change}: requests waited [\d.]+ ms at gw-1, [\d.]+ ms at gw-2$", shown, re.MULTILINE)
    assert "\nfailed requests: 0\nviolations: 0 " in shown
    # The commands it ran, and the product's own words about them.
    assert shown.count("$ isochrone rollout ") == 3
    assert len(re.findall(r"^  rollout r\d is done in ", shown, re.MULTILINE)) == 3
    state = re.search(r"--state (\S+)", shown)
    assert state is not None
    assert not Path(state[1]).exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "number", "status"),
    [("isochrone up", signal.SIGINT, 0), ("preparing at", signal.SIGTERM, 143)],
)
def test_the_demo_told_to_end_leaves_nothing(tmp_path: Path, words: str, number: int, status: int) -> None:
    with subprocess.Popen(COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        started = _when(process, words)
        process.send_signal(number)
        process.communicate(timeout=100)
        assert process.returncode == status
    assert not [child for child in started if child.is_running()]
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_the_demo_leaves_taken_ports_alone_and_killed_leaves_no_process() -> None:
    command = [word for word in COMMAND if word != "--free-ports"]
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", 9001))
            taken.listen(1)
        except OSError:
            pass  # somebody else has it: as well
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
            # Ports are looked at before anything is started.
            started = _when(process, " ready")
            process.kill()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert len(started) >= 3
    assert not alive


def _when(process: subprocess.Popen[str], words: str) -> list[psutil.Process]:
    """All the processes there are when the demo says something."""
    assert process.stdout is not None
    while words not in (line := process.stdout.readline()):
        assert line, "the demo ended too early"
    return psutil.Process(process.pid).children(recursive=True)


# Its own check.


def test_an_answer_of_two_versions_is_found(sightings: ModuleType) -> None:
    good = sightings.Sighting("a", 0.0, 0.0, 1.0, ("1", "1", "1"))
    bad = sightings.Sighting("b", 0.0, 0.0, 1.0, ("2", "2", "1"))
    failed = sightings.Sighting("c", 0.0, 0.0, 1.0, failure="no")
    assert sightings.mixed([good, failed]) == []
    assert sightings.mixed([good, bad, failed]) == ["b got versions 2, 2, 1 in one answer"]


@pytest.mark.parametrize(
    ("sent", "version", "cutover", "found"),
    [
        (12.5, "1", "strict", 1),  # sent when the new one had been seen for half a second
        (11.5, "1", "strict", 0),  # both were under way at once
        (12.5, "2", "strict", 0),
        (12.5, "1", "fast", 0),
        (15.5, "1", "fast", 1),  # the command had said that it is done
    ],
)
def test_an_old_version_after_a_new_one_is_found(
    sightings: ModuleType, sent: float, version: str, cutover: str, found: int
) -> None:
    both = frozenset(("1", "2"))
    phases = [
        sightings.Phase("before", 0.0, frozenset("1"), end=10.0),
        sightings.Phase("change", 10.0, both, cutover, end=15.0),
        sightings.Phase("after", 15.0, frozenset("2")),
    ]
    first = sightings.Sighting("a", 11.0, 11.0, 12.0, ("2", "2"))
    other = sightings.Sighting("b", sent, sent, 20.0, (version, version))
    old = sightings.Sighting("c", 9.0, 9.0, 30.0, ("1", "1"))
    assert len(sightings.violations([first, other, old], phases)) == found
