"""``isochrone doctor``: text, JSON, --fix with and without consent and permission, exit statuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from doctor_machine import CORE, CPU, HUGE, IPV4, build
from isochrone.cli.main import app

QUEUE = f"{CORE}/somaxconn"
SHORT_QUEUE = {QUEUE: "128\n"}


def run(root: Path, *words: str, answer: str = "", measure: bool = False) -> Any:
    options = [] if measure else ["--no-measure"]
    return CliRunner().invoke(app, ["doctor", "--root", str(root), *options, *words], input=answer)


def test_nothing_found(tmp_path: Path) -> None:
    build(tmp_path)
    result = run(tmp_path, "--only", "somaxconn", "--only", "huge_pages")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "0 costs latency, 0 advice, 0 unknown, 2 ok"


def test_a_finding_shows_its_reason_its_command_and_its_source(tmp_path: Path) -> None:
    build(tmp_path, SHORT_QUEUE)
    result = run(tmp_path)
    assert result.exit_code == 1, result.output
    assert "net.core.somaxconn is 128, and servers ask for 4096" in result.output
    assert "why: The kernel shortens the accept queue" in result.output
    assert "fix: sysctl -w net.core.somaxconn=4096" in result.output
    assert "source: https://docs.kernel.org/networking/ip-sysctl.html" in result.output
    assert "--fix can make 1 change" in result.output
    assert (tmp_path / QUEUE).read_text() == "128\n"


def test_of_many_commands_the_first_are_shown(tmp_path: Path) -> None:
    build(tmp_path, {f"{CPU}/cpufreq/policy{number}/scaling_governor": "ondemand\n" for number in range(16)})
    lines = run(tmp_path, "--only", "governor").output.splitlines()
    assert [line.partition(": ")[0] for line in lines].count("    fix") == 5
    assert "    fix: and 12 more of the kind (all of them with --json)" in lines
    assert lines[-1].endswith("--fix can make 16 changes")


def test_advice_alone_is_no_failure(tmp_path: Path) -> None:
    build(tmp_path, {f"{IPV4}/tcp_fastopen": "1\n"})
    result = run(tmp_path, "--only", "fast_open")
    assert result.exit_code == 0, result.output
    assert "1 advice" in result.output


def test_json(tmp_path: Path) -> None:
    build(tmp_path, SHORT_QUEUE, missing=[f"{HUGE}/enabled"])
    result = run(tmp_path, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    findings = {finding["check"]: finding for finding in document["findings"]}
    assert document["costs_latency"] is True
    assert findings["somaxconn"]["severity"] == "costs latency"
    assert findings["somaxconn"]["changes"] == [
        {
            "path": QUEUE,
            "old": "128",
            "new": "4096",
            "command": "sysctl -w net.core.somaxconn=4096",
            "undo": "sysctl -w net.core.somaxconn=128",
            "persistent": "echo 'net.core.somaxconn = 4096' >> /etc/sysctl.d/90-isochrone.conf",
        }
    ]
    assert findings["huge_pages"]["severity"] == "unknown"
    assert findings["huge_pages"]["found"] == f"/{HUGE}/enabled: No such file or directory"
    assert document["measured"]["wake_up"] is None


def test_effects_are_measured(tmp_path: Path) -> None:
    build(tmp_path, missing=[f"{CPU}/cpu0/cpuidle"])
    result = run(tmp_path, measure=True)
    lines = result.output.splitlines()
    assert lines[0].startswith("This machine: wake-up ")
    # What an unknown setting may cost is measured, too.
    assert lines[lines.index("  c_states") + 2].startswith("    here: wake-up ")


def test_fix_with_consent_changes_and_compares(tmp_path: Path) -> None:
    build(tmp_path, SHORT_QUEUE)
    result = run(tmp_path, "--fix", "--only", "somaxconn", answer="y\n")
    assert result.exit_code == 0, result.output
    for line in (
        "  run:  sysctl -w net.core.somaxconn=4096",
        "  undo: sysctl -w net.core.somaxconn=128",
        "  keep: echo 'net.core.somaxconn = 4096' >> /etc/sysctl.d/90-isochrone.conf",
        "done: sysctl -w net.core.somaxconn=4096",
        "  before: costs latency: net.core.somaxconn is 128, and servers ask for 4096; 0 overflows since boot",
        "  after: ok: net.core.somaxconn is 4096, and servers ask for 4096",
        "undo: sysctl -w net.core.somaxconn=128",
    ):
        assert line in result.output.splitlines(), line
    assert (tmp_path / QUEUE).read_text() == "4096"


@pytest.mark.parametrize("answer", ["n\n", "\n", ""], ids=["no", "default", "end of input"])
def test_without_consent_nothing_is_changed(answer: str, tmp_path: Path) -> None:
    build(tmp_path, SHORT_QUEUE)
    result = run(tmp_path, "--fix", "--only", "somaxconn", answer=answer)
    assert result.exit_code == 2
    assert result.stderr == "isochrone doctor: nothing was changed\n"
    assert (tmp_path / QUEUE).read_text() == "128\n"


def test_fix_in_json_needs_agreement_beforehand(tmp_path: Path) -> None:
    build(tmp_path, SHORT_QUEUE)
    refused = run(tmp_path, "--fix", "--json")
    assert refused.exit_code == 2
    assert "expected --yes" in refused.output
    result = run(tmp_path, "--fix", "--json", "--yes", "--only", "somaxconn")
    assert result.exit_code == 0, result.output
    fix = json.loads(result.stdout)["fix"]
    assert [outcome["error"] for outcome in fix["outcomes"]] == [""]
    assert fix["after"]["findings"][0]["severity"] == "ok"


def test_fix_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path, SHORT_QUEUE)
    monkeypatch.setattr("isochrone.doctor.fixing.os.access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr("isochrone.cli.doctor.command.os.geteuid", lambda: 1000)
    result = run(tmp_path, "--fix", "--yes", "--only", "somaxconn")
    assert result.exit_code == 2
    assert f"--fix: expected permission to write {tmp_path / QUEUE}, given a user who is not root" in result.output
    assert 'run sudo "$(command -v isochrone)" doctor --fix; nothing was changed' in result.output
    assert (tmp_path / QUEUE).read_text() == "128\n"


def test_a_value_that_the_kernel_does_not_take_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path, SHORT_QUEUE)
    monkeypatch.setattr(Path, "write_text", lambda path, text: len(text))
    result = run(tmp_path, "--fix", "--yes", "--only", "somaxconn")
    assert result.exit_code == 2
    assert "failed, the kernel keeps '128': sysctl -w net.core.somaxconn=4096" in result.output


def test_fix_with_nothing_to_change(tmp_path: Path) -> None:
    build(tmp_path)
    result = run(tmp_path, "--fix", "--only", "somaxconn")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "Nothing to change."


def test_fix_with_nothing_that_it_may_change(tmp_path: Path) -> None:
    build(tmp_path, {f"{IPV4}/ip_local_port_range": "60000\t60999\n"})
    result = run(tmp_path, "--fix", "--only", "local_ports")
    assert "    fix: " in result.output
    assert result.output.splitlines()[-1] == "Nothing that --fix may change; see the fix lines above."


def test_yes_alone_agrees_to_nothing(tmp_path: Path) -> None:
    build(tmp_path, SHORT_QUEUE)
    result = run(tmp_path, "--yes")
    assert result.exit_code == 2
    assert result.output == "isochrone doctor: --yes: expected --fix with it; nothing was changed\n"


def test_a_root_that_does_not_exist(tmp_path: Path) -> None:
    result = run(tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "does not exist" in result.output


def test_an_unknown_check_is_suggested(tmp_path: Path) -> None:
    result = run(tmp_path, "--only", "somaxcon")
    assert result.exit_code == 2
    assert "--only: expected a known check (did you mean 'somaxconn'?), given 'somaxcon'" in result.output
