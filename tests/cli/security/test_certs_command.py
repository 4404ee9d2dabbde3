"""``isochrone certs`` from end to end, and openssl's opinion of what it makes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isochrone.cli.main import app


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["certs", *words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def directory(tmp_path: Path) -> str:
    path = str(tmp_path / "ca")
    run("init", path)
    run(
        "issue",
        path,
        "worker",
        "--host",
        "localhost",
        "--host",
        "::1",
        "--uri",
        "spiffe://example.org/worker",
        "--client",
    )
    return path


def test_openssl_accepts_a_certificate_for_its_names_alone(directory: str) -> None:
    def verify(*words: str) -> bool:
        command = ["openssl", "verify", "-x509_strict", "-CAfile", f"{directory}/ca.crt", *words]
        return subprocess.run([*command, f"{directory}/worker/tls.crt"], capture_output=True).returncode == 0

    assert verify("-verify_hostname", "localhost", "-purpose", "sslserver")
    assert verify("-verify_ip", "::1", "-purpose", "sslclient")
    assert not verify("-verify_hostname", "elsewhere")
    run("issue", directory, "server", "--host", "localhost")
    command = [
        "openssl",
        "verify",
        "-CAfile",
        f"{directory}/ca.crt",
        "-purpose",
        "sslclient",
        f"{directory}/server/tls.crt",
    ]
    assert subprocess.run(command, capture_output=True).returncode != 0


def test_show_and_rotate(directory: str) -> None:
    before = json.loads(run("show", directory, "--json"))
    assert before["stage"] == "single"
    authority, worker = before["certificates"]
    assert (authority["kind"], worker["kind"], worker["name"]) == ("authority", "server and client", "worker")
    assert worker["hosts"] == ["localhost", "::1"]
    assert worker["uris"] == ["spiffe://example.org/worker"]
    output = run("rotate", directory)
    after = json.loads(run("show", directory, "--json"))["certificates"][1]
    assert after["serial"] in output
    assert after["serial"] != worker["serial"]
    assert worker["serial"] not in run("show", directory)


def test_an_authority_is_replaced_in_three_steps_that_say_what_comes_next(directory: str) -> None:
    first, *_ = json.loads(run("show", directory, "--json"))["certificates"]
    assert "again" in run("rotate", directory, "--ca")
    assert "signs nothing yet" in run("show", directory)
    assert "again" in run("rotate", directory, "--ca")
    assert "still trusted" in run("show", directory)
    assert "complete" in run("rotate", directory, "--ca")
    left = json.loads(run("show", directory, "--json"))
    assert left["stage"] == "single"
    assert first["serial"] not in json.dumps(left)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["init", "DIR"], "has an authority already"),
        (["issue", "DIR", "a"], "--host: expected a name for a server, or --client for a client, given neither"),
        (
            ["issue", "DIR", "a", "--host", "a:1"],
            "--host: expected a DNS name or an IP address, without a port, given 'a:1'",
        ),
        (["issue", "DIR", "a", "--client", "--uri", "x"], "--uri: expected a URI such as spiffe://example.org/worker"),
        (["issue", "DIR", "..", "--client"], "NAME: expected letters"),
        (["rotate", "DIR/nothing"], "make one: isochrone certs init"),
        (["show", "DIR/nothing"], "make one: isochrone certs init"),
    ],
)
def test_errors_are_one_sentence_that_names_what_to_change(directory: str, words: list[str], error: str) -> None:
    result = CliRunner().invoke(app, ["certs", *(word.replace("DIR", directory) for word in words)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"isochrone certs {words[0]}: ")
    assert error in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_the_library_the_error_names_the_extra(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from isochrone.cli.main import app\n"
        f"app(['certs', 'init', {str(tmp_path / 'ca')!r}])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "pip install 'isochrone[secure]'" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "ca").exists()
