"""What the runner makes of a broken promise: told apart by cause, made small, kept; and what it keeps of the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz import __main__ as command
from fuzz.findings import failure, keep, minimised
from fuzz.selection import selected
from fuzz.target import Target, outcome
from fuzz.targets import TARGETS
from isochrone.errors import Internal, MalformedRequest


def _broken(data: bytes) -> None:
    if b"bug" in data:
        raise ValueError("a bug")
    if data.startswith(b"other"):
        json.loads(data)


TARGET = Target("broken", (), "nothing", _broken, (b"a seed with a b u g", b"bu"))


def test_causes_are_told_apart_by_type_and_line() -> None:
    assert failure(TARGET, b"nothing") is None
    first, second = failure(TARGET, b"a bug"), failure(TARGET, b"other")
    assert first is not None
    assert first.startswith("ValueError in test_findings.py:")
    assert second is not None
    assert second != first
    assert failure(TARGET, b"another bug here") == first


def test_a_finding_is_made_as_small_as_it_can_be() -> None:
    assert minimised(TARGET, b"x" * 500 + b"bug" + b"y" * 700) == b"bug"
    assert minimised(TARGET, b"no fault") == b"no fault"


def test_a_promise_that_breaks_is_reported_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fuzz.target.CORPUS", tmp_path)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "TARGETS", (replace(TARGET, seeds=(b"x bug y",)),))
    assert command.main(["--plain", "--seconds", "0.2", "broken"]) == 1
    (kept,) = (tmp_path / "broken").iterdir()
    assert kept.read_bytes() == b"bug"
    out = capsys.readouterr().out
    assert "ValueError in test_findings.py" in out
    assert f"broken/{kept.name}" in out


def test_without_findings_the_command_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--plain", "--seconds", "0.1", "http1_chunked"]) == 0
    assert "http1_chunked" in capsys.readouterr().out
    assert command.main(["--list", "hpack"]) == 0
    assert capsys.readouterr().out.startswith("hpack: the headers that the package hpack reads")
    with pytest.raises(SystemExit):
        command.main(["no_such_target"])
    assert "http2_server" in capsys.readouterr().err


def test_counts_are_those_that_libfuzzer_prints() -> None:
    lines = "INFO: Seed: 1\n#4\tINITED cov: 40 ft: 76 corp: 3/64b\n#5\tNEW    cov: 41 ft: 86\n"
    assert command.counts(lines) == (5, 41)
    assert command.counts(lines + "Done 50546 runs in 9 second(s)\n") == (50546, 41)
    assert command.counts(lines + "stat::number_of_executed_units: 77\n") == (77, 41)
    assert command.counts("ModuleNotFoundError") == (0, None)


def test_inputs_are_kept_that_reach_what_the_others_do_not() -> None:
    target = next(each for each in TARGETS if each.name == "http1_chunked")
    known, new = target.seeds[0], b"\0+3\r\nabc\r\n0\r\n\r\n"
    alone = replace(target, name="not in the corpus", seeds=(known,))
    assert selected(alone, [known, new, new + b"more"]) == [new]


def test_a_kept_input_is_an_input_of_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.target.CORPUS", tmp_path)
    keep(TARGET, b"kept")
    assert list(TARGET.inputs())[-1] == b"kept"


def test_an_error_that_is_the_servers_fault_breaks_every_promise() -> None:
    def fails(error: Exception) -> None:
        raise error

    assert outcome(fails, MalformedRequest("x")) == (False, ("MalformedRequest", "x"))
    with pytest.raises(AssertionError):
        outcome(fails, Internal("x"))
    with pytest.raises(ValueError, match="x"):
        outcome(fails, ValueError("x"))
