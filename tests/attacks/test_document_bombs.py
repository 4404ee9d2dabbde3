"""Documents for the control API of a real controller that are to take it long, exhaust or confuse it: each is refused
with a sentence, and others are answered meanwhile."""

from __future__ import annotations

import gzip
import json
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from attacked_controller import AttackedController, attacked_controller
from guarded_servers import ask

from hostile_client import connected, parse_answers, read_to_end, resident_bytes

MIB = 1 << 20
PATH = "/v1/fleet?dry_run=1"
LETTERS = "abcdefghij"


def nested(of: str, form: str) -> str:
    """Each anchor holds ten times the one before."""
    lines = [f"a: &a {of}"]
    lines += [f"{name}: &{name} {form % ','.join([f'*{before}'] * 10)}" for before, name in pairwise(LETTERS)]
    return "\n".join(lines)


YAML = {
    "aliases of aliases": nested("[x,x,x,x,x,x,x,x,x,x]", "[%s]"),
    "merges of merges": nested("{x: 1}", "{<<: [%s]}"),
    "an anchor that holds itself": "a: &a [*a]",
    "an anchor that holds itself by a key": "a: &a {? *a : 1}",
    "brackets": "[" * MIB,
    "braces": "{a: " * (MIB // 4),
    "dashes": "- " * 50_000,
    "indented keys": "".join(" " * depth + "a:\n" for depth in range(2000)),
    "a number of base 60": "name: 1" + ":59" * (MIB // 3),
    "a float of base 60": "name: 1" + ":59" * 500 + ".5",
    "hexadecimal digits": "name: 0x" + "f" * MIB,
    "digits": "name: " + "9" * MIB,
    "an object of Python": "name: !!python/object/apply:os.system ['touch /tmp/pwned']",
    "a module of Python": "name: !!python/module:os",
    "a tag without end": "name: !<" + "%41" * 100_000 + "> x",
    "tags that do not fit": 'name: !!int ""',
    "times that are none": "name: !!timestamp soon",
    "a set": "name: !!set {a, b}",
    "keys that are lists": "? [a, [b]]\n: 1",
    "many documents": "---\n" * 10_000,
    "many values": "[" + "a," * 20_000,
    "many unknown keys": "\n".join(f"k{number}: {number}" for number in range(2000)),
    "many models": "name: x\nmodels:\n" + "\n".join(f"  m{number}: {{version: [1]}}" for number in range(2000)),
    "a NUL": 'name: "a\\0b"',
    "half a character": 'name: "\\ud800"',
    "half a character as a key": '"\\ud800": 1',
    "a NUL in a path": 'name: x\nrepository: "a\\0b"',
    "half a character in a path": 'name: x\nrepository: "\\udc80"',
    "an endless path": "name: x\nrepository: " + "a/" * 100_000,
    "a control character": "name: \x01",
    "nothing": "",
    "a byte order mark": "\ufeffname: [",
    "comments": "#\n" * 50_000,
}
#: Read as JSON by their name.
JSON = {
    "brackets": "[" * MIB,
    "keys": '{"a":' * (MIB // 5),
    "digits": '{"name": ' + "9" * MIB + "}",
    "a key twice, after 100,000": "{" + ",".join(f'"k{number}":1' for number in range(100_000)) + ',"z":1,"z":2}',
    "no number": '{"name": NaN}',
    "half a character": '{"name": "\\udc80"}',
}


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedController]:
    with attacked_controller(tmp_path_factory.mktemp("documents")) as started:
        yield started


def put(port: int, body: bytes | dict[str, Any], **headers: str) -> tuple[int, bytes]:
    """The answer, while an honest caller is answered on connections of its own."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answers: list[tuple[int, bytes]] = []

    def send() -> None:
        status, _, answer = ask(port, "PUT", PATH, {"content-type": "application/json", **headers}, content)
        answers.append((status, answer))

    sending = threading.Thread(target=send)
    sending.start()
    while True:
        was_sent = sending.is_alive()
        assert ask(port, "GET", "/v1/status")[0] == 200
        if not was_sent:
            break
    sending.join()
    return answers[0]


def test_fleet_files_that_are_bombs(controller: AttackedController, tmp_path: Path, tried: Counter[str]) -> None:
    port = controller.ports["control"]
    before = resident_bytes(controller.process.pid)
    for name, documents in (("fleet.yaml", YAML), ("fleet.json", JSON)):
        for what, text in documents.items():
            status, answer = put(port, {"text": text, "directory": str(tmp_path), "file": name})
            assert status == 400, (name, what, status, answer[:500])
            assert len(json.loads(answer)["error"]) < 100_000, what
            tried["fleet files that are bombs, at the control API"] += 1
    assert not Path("/tmp/pwned").exists()
    assert resident_bytes(controller.process.pid) - before < 256 * MIB
    assert ask(port, "GET", "/v1/fleet")[0] == 404, "nothing was applied"


def test_bodies_that_are_bombs(controller: AttackedController, tmp_path: Path, tried: Counter[str]) -> None:
    port = controller.ports["control"]
    good = {"text": "name: plant", "directory": str(tmp_path), "file": "fleet.yaml"}
    bodies: dict[str, Any] = {
        "brackets": b"[" * MIB,
        "keys": b'{"text":' * (MIB // 8),
        "not UTF-8": b'{"text": "\xff\xfe", "directory": "/"}',
        "UTF-16": json.dumps(good).encode("utf-16"),
        "half a character": b'{"text": "\\ud800", "directory": "/"}',
        "a NUL": b'{"text": "name: x"}\0',
        "digits": b'{"generation": ' + b"9" * MIB + b"}",
        "gzip": gzip.compress(json.dumps(good).encode()),
        "a relative directory": {**good, "directory": "../../etc"},
        "a directory with NUL": {**good, "directory": "/tmp/\0"},
        "a directory of half a character": {**good, "directory": "/tmp/\ud800"},
        "an endless directory": {**good, "directory": "/" + "a/" * 100_000},
        "a file name with NUL": {**good, "text": "[", "file": "\0"},
        "an unknown key": {**good, "__class__": 1},
        "a list": [good],
    }
    for what, body in bodies.items():
        status, answer = put(port, body)
        assert status == 400, (what, status, answer[:500])
        tried["bodies that are bombs, at the control API"] += 1
    for encoding in ("gzip", "zstd", "deflate", "gzip, gzip"):
        status, answer = put(port, gzip.compress(bytes(64 * MIB)), **{"content-encoding": encoding})
        assert status in (400, 413, 415), (encoding, answer)
        tried["compressed bodies at the control API"] += 1
    status, answer = put(port, {**good, "text": "#" * (8 * MIB)})
    assert status == 413, answer
    # Announced, and sent in chunks without end.
    with connected(port) as connection:
        fields = "Host: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(f"PUT {PATH} HTTP/1.1\r\n{fields}".encode())
        try:
            for _ in range(200):
                connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        except OSError:
            pass
        answers = parse_answers(read_to_end(connection))
        assert [each.status for each in answers] in ([413], []), answers
    tried["bodies that are larger than the limit, at the control API"] += 2
    assert ask(port, "GET", "/v1/health")[0] == 200
