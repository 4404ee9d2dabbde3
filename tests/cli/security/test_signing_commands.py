"""``isochrone sign`` and ``isochrone verify`` on a repository, and OpenSSF's own command on the result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.x509 import RFC822Name
from typer.testing import CliRunner, Result

from isochrone.cli.main import app
from sample_models import write_config, write_models
from signing_keys import Key, make_certificate, make_key


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return make_key(tmp_path)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_models(tmp_path / "models", "add_sub", "pipeline")


def rows(models: Path, *words: object) -> dict[tuple[str, int], dict[str, object]]:
    ended = invoke("verify", models, "--json", *words)
    return {(row["model"], row["version"]): row for row in json.loads(ended.output)}


def test_signed_versions_verify_and_others_do_not(models: Path, key: Key) -> None:
    names = sorted(path.name for path in models.iterdir())
    for name in names:
        ended = invoke("sign", models, name, "--key", key.private, "--version", "all", "--source", "run-17")
        assert ended.exit_code == 0, ended.output
    ended = invoke("verify", models, "--trust", key.public)
    assert ended.exit_code == 0, ended.output
    assert ended.output.count("run-17") == len(rows(models, "--trust", key.public)) >= len(names)

    write_config(models / names[0], "max_batch_size: 1")
    ended = invoke("verify", models, "--trust", key.public)
    assert ended.exit_code == 1
    assert f"model '{names[0]}' version 1 is refused: 'config.pbtxt' has other bytes" in ended.output
    found = rows(models, "--trust", key.public)
    assert {name for (name, _), row in found.items() if not row["verified"]} == {names[0]}
    assert invoke("verify", models, names[1], "--trust", key.public).exit_code == 0


def test_the_newest_version_is_signed_unless_one_is_named(tmp_path: Path, key: Key) -> None:
    model = tmp_path / "models" / "m"
    write_config(model, 'backend: "python"')
    for version in (2, 10):
        (model / str(version)).mkdir()
    assert invoke("sign", model.parent, "m", "--key", key.private).exit_code == 0
    assert [path.name for path in model.glob("*.sig")] == ["10.sig"]
    ended = invoke("sign", model.parent, "m", "--key", key.private, "--version", "2", "--json")
    assert json.loads(ended.output) == [
        {"model": "m", "version": 2, "signature": str(model / "2.sig"), "files": 1},
    ]
    ended = invoke("sign", model.parent, "m", "--key", key.private, "--version", "3")
    assert ended.exit_code == 1
    assert "one of 2, 10, or all, given '3'" in ended.output


def test_a_certificate_signs(models: Path, tmp_path: Path) -> None:
    root = make_certificate(tmp_path, "root", is_authority=True)
    leaf = make_certificate(tmp_path, "leaf", root, names=(RFC822Name("release@example.com"),))
    words = ("--key", leaf.key.private, "--certificate", leaf.path)
    assert invoke("sign", models, "add_sub", *words).exit_code == 0
    assert rows(models, "add_sub", "--trust", root.path)["add_sub", 1]["signer"] == "release@example.com"
    ended = invoke("sign", models, "add_sub", "--key", leaf.key.private, "--chain", root.path)
    assert ended.exit_code == 2
    assert "needs --certificate" in ended.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("nothing", "add_sub"), "no directory"),
        (("s3://bucket/models", "add_sub"), "sign before the upload"),
        (("MODELS", "absent"), "has no model 'absent'"),
        (("MODELS", "../models"), "expected one directory name"),
        (("MODELS", "add_sub", "--source", "a\nb"), "at most 200 printable characters"),
    ],
)
def test_mistakes_are_named(models: Path, key: Key, words: tuple[str, ...], reason: str) -> None:
    ended = invoke("sign", *(str(models) if word == "MODELS" else word for word in words), "--key", key.private)
    assert ended.exit_code == 1
    assert reason in ended.output
    assert list(models.rglob("*.sig")) == []


def test_a_key_that_is_none_is_named(models: Path, key: Key) -> None:
    for wrong in (key.public, models / "absent.key"):
        ended = invoke("sign", models, "add_sub", "--key", wrong)
        assert ended.exit_code == 1
        assert str(wrong) in ended.output


def test_openssf_verifies_what_is_signed_here(models: Path, key: Key) -> None:
    assert invoke("sign", models, "add_sub", "--key", key.private).exit_code == 0
    model = models / "add_sub"
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(model), "--signature", str(model / "1.sig")]
    command += ["--public_key", str(key.public), "--ignore_unsigned_files"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    write_config(model, "max_batch_size: 1")
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert "config.pbtxt" in found.stderr
