"""Where keys come from, and what of them is never shown."""

from __future__ import annotations

import base64
import os
import sys
import time
from pathlib import Path

import pytest

from isochrone.errors import FlagError, IsochroneError
from isochrone.secure.encryption.commands import MAX_OUTPUT, run_command
from isochrone.secure.encryption.failures import EncryptionRefused, NoKey
from isochrone.secure.encryption.model_keys import ModelKeys
from isochrone.secure.encryption.wrapping import WrappedKey, decode_key, encode_key
from watching import wait_for

DATA_KEY = bytes(range(32))
ONE, OTHER = "11" * 32, "22" * 32


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    for name, key in (("one", ONE), ("other", OTHER)):
        (tmp_path / name).write_text(f"{key}\n")
    return f"file:{tmp_path / 'one'}", f"file:{tmp_path / 'other'}"


def program(tmp_path: Path, source: str) -> str:
    path = tmp_path / "hook.py"
    path.write_text(f"#!{sys.executable}\nimport base64, json, sys, time\nrequest = json.load(sys.stdin)\n{source}\n")
    path.chmod(0o755)
    return f"command:{path}"


#: A stand-in for a KMS: it "encrypts" by reversing.
_KMS = """
if request["operation"] == "wrap":
    print(json.dumps({"id": sys.argv[1], "wrapped": request["key"][::-1]}))
elif request["id"] == sys.argv[1]:
    print(request["wrapped"][::-1])
else:
    sys.exit("hunter2: not mine")
"""


def test_the_key_is_chosen_by_its_id(files: tuple[str, str]) -> None:
    wrapped = ModelKeys([files[1]]).wrap(DATA_KEY, "m", "1")
    assert ModelKeys(files).unwrap(wrapped, "m", "1") == DATA_KEY
    assert decode_key(encode_key(wrapped)) == wrapped
    with pytest.raises(NoKey, match="which no --model-key has") as refused:
        ModelKeys([files[0]]).unwrap(wrapped, "m", "1")
    assert ONE not in str(refused.value)


@pytest.mark.parametrize(("model", "version"), [("n", "1"), ("m", "2"), ("m1", "")])
def test_a_wrapped_key_is_of_one_version(files: tuple[str, str], model: str, version: str) -> None:
    wrapped = ModelKeys(files).wrap(DATA_KEY, "m", "1")
    with pytest.raises(EncryptionRefused, match="made for another version"):
        ModelKeys(files).unwrap(wrapped, model, version)


def test_a_wrapped_key_that_was_changed_is_refused(files: tuple[str, str]) -> None:
    keys = ModelKeys(files)
    wrapped = keys.wrap(DATA_KEY, "m", "1")
    content = bytearray(base64.b64decode(wrapped.wrapped))
    for at in range(len(content)):
        content[at] ^= 1
        changed = WrappedKey(wrapped.by, wrapped.id, base64.b64encode(content).decode())
        with pytest.raises(EncryptionRefused, match="was changed"):
            keys.unwrap(changed, "m", "1")
        content[at] ^= 1
    for text in ("", "AAAA", "no base64!"):
        with pytest.raises(EncryptionRefused):
            keys.unwrap(WrappedKey(wrapped.by, wrapped.id, text), "m", "1")


def test_a_file_is_read_at_every_use(files: tuple[str, str], tmp_path: Path) -> None:
    keys = ModelKeys([files[0]])
    wrapped = ModelKeys([files[1]]).wrap(DATA_KEY, "m", "1")
    (tmp_path / "one").write_text(OTHER)
    assert keys.unwrap(wrapped, "m", "1") == DATA_KEY


def test_a_variable_leaves_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", ONE)
    keys = ModelKeys(["env:MODEL_KEY"])
    assert "MODEL_KEY" not in os.environ
    assert keys.unwrap(keys.wrap(DATA_KEY, "m", "1"), "m", "1") == DATA_KEY
    assert bytes.fromhex(ONE).hex() not in repr(vars(keys))
    assert repr(bytes.fromhex(ONE)) not in repr(vars(keys))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("env:NO_SUCH_VARIABLE", "a variable NO_SUCH_VARIABLE"),
        ("file:/no/such/file", "a file that can be read"),
        ("command:/no/such/program --key x", "a program that can be run"),
        ("command:'unfinished", "quoted as for a shell"),
        ("command:", "file:PATH, env:NAME or command:PROGRAM"),
        ("vault:x", "file:PATH, env:NAME or command:PROGRAM"),
    ],
)
def test_a_source_that_is_none_is_an_error_of_the_flag(source: str, expected: str) -> None:
    with pytest.raises(FlagError, match="--model-key: expected") as wrong:
        ModelKeys([source])
    assert expected in str(wrong.value)


@pytest.mark.parametrize("content", [ONE[:-2], ONE + "33", "z" * 64, ONE[:-1] + "z"])
def test_a_key_in_another_form_is_not_shown(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(content)
    monkeypatch.setenv("MODEL_KEY", content)
    for source in (f"file:{tmp_path / 'key'}", "env:MODEL_KEY", content):
        with pytest.raises(FlagError) as wrong:
            ModelKeys([source])
        assert content not in str(wrong.value)


def test_a_program_wraps_and_unwraps(tmp_path: Path) -> None:
    keys = ModelKeys([program(tmp_path, _KMS) + " 'key 1'"])
    wrapped = keys.wrap(DATA_KEY, "m", "1")
    assert (wrapped.by, wrapped.id) == ("command", "key 1")
    assert keys.unwrap(wrapped, "m", "1") == DATA_KEY
    with pytest.raises(NoKey, match="ended with status 1; run it by hand") as refused:
        keys.unwrap(WrappedKey("command", "key 2", wrapped.wrapped), "m", "1")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(NoKey, match="needs a --model-key command"):
        ModelKeys([]).unwrap(wrapped, "m", "1")


@pytest.mark.parametrize("printed", ["'AAAA'", "'hunter2' * 10", "''", "base64.b64encode(bytes(33)).decode()"])
def test_what_a_program_prints_is_in_no_error(tmp_path: Path, printed: str) -> None:
    keys = ModelKeys([program(tmp_path, f"print({printed})")])
    with pytest.raises(EncryptionRefused, match="did not print 32 bytes in base64") as refused:
        keys.unwrap(WrappedKey("command", "k", "x"), "m", "1")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(EncryptionRefused, match="did not print"):
        keys.wrap(DATA_KEY, "m", "1")


def test_a_program_that_prints_without_end_is_ended(tmp_path: Path) -> None:
    source = program(tmp_path, "while True: print('x' * 1000)")
    with pytest.raises(EncryptionRefused, match=f"more than {MAX_OUTPUT} bytes"):
        run_command([source.removeprefix("command:")], b"{}")


@pytest.mark.parametrize("closes", ["", "sys.stdout.close(); import os; os.close(1)"])
def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path, closes: str) -> None:
    """Also one that has closed its output, and one whose child keeps it open."""
    pids = tmp_path / "pids"
    source = program(
        tmp_path,
        "import os, subprocess\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(str(child.pid))\n{closes}\ntime.sleep(600)",
    )
    started = time.monotonic()
    with pytest.raises(EncryptionRefused, match="did not end within 3 s"):
        run_command([source.removeprefix("command:")], b"{}", 3.0)
    assert time.monotonic() - started < 60
    child = Path(f"/proc/{pids.read_text()}/stat")
    wait_for(lambda: not child.exists() or " Z " in child.read_text())


def test_a_program_that_reads_nothing_may_answer(tmp_path: Path) -> None:
    path = tmp_path / "quick"
    path.write_text("#!/bin/sh\nexec 0<&-\necho yes\n")
    path.chmod(0o755)
    assert run_command([str(path)], b"x" * 10_000) == b"yes\n"


def test_without_a_source_there_is_no_key() -> None:
    with pytest.raises(IsochroneError):
        ModelKeys([]).wrap(DATA_KEY, "m", "1")
