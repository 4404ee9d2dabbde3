"""isochrone audit: what it shows, verifies and exports."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from isochrone.cli.security.audit import app
from isochrone.secure.audit.actor import Actor, anonymous
from isochrone.secure.audit.log import AuditLog
from isochrone.secure.audit.records import Entry
from isochrone.secure.audit.refusals import Kind, Refusals
from isochrone.secure.audit.segments import segments_in
from isochrone.secure.audit.settings import AuditSettings

SECOND = 1_000_000_000
#: 2026-11-18T00:00:00Z.
BEGAN = 1_794_960_000 * SECOND


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


class Clock:
    def __init__(self, start: int) -> None:
        self.now = start

    def __call__(self) -> int:
        self.now += SECOND
        return self.now


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two gateways and a controller, whose records alternate."""
    (tmp_path / "key").write_text("0123456789abcdef0123456789abcdef")
    for place, name in enumerate(("gw-1", "gw-2")):
        clock = Clock(BEGAN + place * SECOND // 2)
        log = AuditLog(AuditSettings(tmp_path / "audit", name, key_file=str(tmp_path / "key")), clock)
        log.open()
        for number in range(3):
            agent = {"agent": f"robot-{number}", "request_id": f"{name}-{number}", "version": "2"}
            log.write([Entry(clock(), Actor("anonymous", "anonymous", "10.0.0.1"), "infer", "detector", "done", agent)])
        log.close()
    clock = Clock(BEGAN + 3600 * SECOND)
    log = AuditLog(AuditSettings(tmp_path / "audit", "c1", key_file=str(tmp_path / "key")), clock)
    log.open()
    changed = {"changes": {"detector": "3"}, "user": "=cmd|'/c calc'!A1"}
    log.write([Entry(clock(), Actor("token", "token", "10.0.0.9"), "rollout.start", "", "attempt", changed)])
    log.write([Entry(clock(), Actor("+evil\x1b[2J", "token"), "process.drain", "gw-1", "done", {})])
    log.close()
    return tmp_path / "audit"


def test_show_merges_logs_by_time(logs: Path) -> None:
    shown = run("show", logs, "--action", "infer")
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert [line.split("  ")[1] for line in lines] == ["gw-1", "gw-2"] * 3
    assert [line.split("  ")[0] for line in lines] == sorted(line.split("  ")[0] for line in lines)
    assert "anonymous@10.0.0.1" in lines[0]
    assert "agent=robot-0" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (("--actor", "robot-1"), 2),
        (("--actor", "token"), 1),
        (("--model", "detector"), 6),
        (("--action", "rollout"), 1),
        (("--action", "roll"), 0),
        (("--since", "2026-11-18T00:30"), 5),
        (("--since", "2026-11-18T01:30+01:00"), 5),
        (("--since", "1s", "--action", "infer"), 0),
        (("--model", "tracker"), 0),
    ],
)
def test_show_selects(logs: Path, arguments: tuple[str, ...], count: int) -> None:
    shown = run("show", logs, *arguments, "--json")
    assert shown.exit_code == 0
    records = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len(records) == count
    assert all({"log", "sequence", "hash", "actor", "details"} <= {*record} for record in records)


def test_refused_callers_are_shown_and_found_by_what_they_wanted(tmp_path: Path) -> None:
    refusals = Refusals()
    stranger, robot = anonymous("10.0.0.7"), Actor("token:robot", "token", "10.0.0.8")
    refusals.add(Kind(stranger, "inference", "unauthenticated"), BEGAN)
    refusals.add(Kind(stranger, "inference", "unauthenticated"), BEGAN + SECOND)
    refusals.add(Kind(robot, "model-repository", "permission_denied", "model.load"), BEGAN + 2 * SECOND)
    log = AuditLog(AuditSettings(tmp_path / "audit", "w-1"), Clock(BEGAN))
    log.open()
    log.write(refusals.drain(0))
    log.close()
    shown = run("show", tmp_path / "audit", "--action", "access").stdout.splitlines()
    assert [line.split("  ", 1)[1] for line in shown] == [
        "w-1  anonymous@10.0.0.7  access.refuse  inference  refused  "
        "error=unauthenticated times=2 first=2026-11-18T00:00:00.000000Z",
        "w-1  token:robot@10.0.0.8  access.refuse  model-repository  refused  "
        "error=permission_denied change=model.load times=1",
    ]
    for action in ("model", "model.load"):
        assert run("show", tmp_path / "audit", "--action", action).stdout.splitlines() == shown[1:]
    assert run("show", tmp_path / "audit", "--action", "model.unload").stdout == ""
    assert run("show", tmp_path / "audit", "--actor", "token:robot").stdout.splitlines() == shown[1:]


@pytest.mark.parametrize("arguments", [("show",), ("show", "--json"), ("export",), ("export", "--format", "csv")])
def test_output_that_nobody_reads_ends_the_command_without_a_word(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    log = AuditLog(AuditSettings(tmp_path / "audit", "gw-1"), Clock(BEGAN))
    log.open()
    entry = Entry(BEGAN, Actor("anonymous", "anonymous"), "infer", "detector", "done", {"request_id": "r" * 150})
    # More than a pipe holds.
    log.write([entry] * 2000)
    log.close()
    command = [sys.executable, "-m", "isochrone", "audit", *arguments, str(tmp_path / "audit")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    # As other commands end then.
    assert process.returncode == 1


def test_a_full_disk_is_no_closed_output(logs: Path) -> None:
    command = [sys.executable, "-m", "isochrone", "audit", "export", str(logs)]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert "No space left on device" in ended.stderr


def test_nothing_of_a_caller_reaches_the_terminal_as_a_control_character(logs: Path) -> None:
    shown = run("show", logs, "--action", "process.drain")
    assert "\x1b" not in shown.stdout
    assert "\\x1b[2J" in shown.stdout


def test_export_writes_tables_that_run_nothing(logs: Path) -> None:
    table = list(csv.DictReader(io.StringIO(run("export", logs, "--format", "csv").stdout)))
    assert len(table) == 6 + 2 + 3 * 3
    (drained,) = (row for row in table if row["action"] == "process.drain")
    assert drained["actor"].startswith("'+evil")
    (started,) = (row for row in table if row["action"] == "rollout.start")
    assert json.loads(started["details"])["changes"] == {"detector": "3"}
    assert not any(value.startswith(("=", "+", "-", "@")) for row in table for value in row.values())
    lines = run("export", logs, "--format", "jsonl").stdout.splitlines()
    assert len(lines) == len(table)
    assert run("export", logs, "--format", "xml").exit_code == 1


def test_verify_prints_heads_and_knows_them_again(logs: Path) -> None:
    key = logs.parent / "key"
    verified = run("verify", logs, "--key", key)
    assert verified.exit_code == 0, verified.output
    assert [line.split(":")[0] for line in verified.stdout.splitlines()] == ["c1", "gw-1", "gw-2"]
    assert verified.stdout.count("sealed") == 3
    head = next(line for line in verified.stdout.splitlines() if line.startswith("gw-1")).split()[-1]
    assert run("verify", logs / "gw-1", "--head", head).exit_code == 0
    assert run("verify", logs, "--head", f"gw-1={head}").exit_code == 0
    other = run("verify", logs, "--head", f"gw-2={head}")
    assert other.exit_code == 1
    assert "truncated" in other.stdout
    assert "LOG=HASH" in run("verify", logs, "--head", head).output
    assert "one of the logs" in run("verify", logs, "--head", f"nobody={head}").output


def test_verify_names_file_line_and_record(logs: Path) -> None:
    path = segments_in(logs / "gw-1")[0].path
    path.write_bytes(path.read_bytes().replace(b"robot-1", b"robot-9"))
    verified = run("verify", logs, "--key", logs.parent / "key")
    assert verified.exit_code == 1
    assert f"gw-1/{path.name}:4: edited: record 4: its hash is not that of its content" in verified.stdout
    assert "gw-2: intact" in verified.stdout
    found = json.loads(run("verify", logs, "--json").stdout)
    assert [each["intact"] for each in found] == [True, False, True]
    assert found[1]["findings"] == [
        {
            "kind": "edited",
            "file": path.name,
            "line": 4,
            "record": 4,
            "message": "its hash is not that of its content",
        }
    ]


def test_a_wrong_key_is_found(logs: Path) -> None:
    (logs.parent / "other").write_text("another key of some length")
    verified = run("verify", logs, "--key", logs.parent / "other")
    assert verified.exit_code == 1
    assert verified.stdout.count("forged") == 3


def test_directories_without_a_log(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nothing"):
        shown = run("show", directory)
        assert shown.exit_code == 1
        assert "--audit" in shown.output
