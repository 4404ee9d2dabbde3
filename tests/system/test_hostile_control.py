"""Load requests with evil names and files, and shared memory with evil keys: nothing outside is touched."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hostile_client import Answer, Victim, ask
from hostile_models import write_repository
from server_process import StartServer


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = write_repository(tmp_path_factory.mktemp("hostile") / "models")
    outside = repository.parent / "outside"
    (outside / "1").mkdir(parents=True)
    (outside / "config.pbtxt").write_text('name: "outside"\nbackend: "python"\n')
    (outside / "1" / "model.py").write_text("raise SystemExit('loaded from outside')\n")
    return repository


@pytest.fixture(scope="module")
def victim(server_factory: StartServer, repository: Path) -> Iterator[Victim]:
    arguments = (
        "--model-control-mode",
        "explicit",
        "--load-model",
        "*",
        "--allow-shared-memory",
        "--allow-file-overrides",
    )
    with server_factory(repository, *arguments) as server:
        yield Victim(server)


@pytest.fixture(autouse=True)
def _unharmed(victim: Victim) -> Iterator[None]:
    yield
    victim.check()


def load(victim: Victim, name: str, parameters: dict[str, Any] | None = None, verb: str = "load") -> Answer:
    body = json.dumps({"parameters": parameters or {}}).encode()
    return ask(victim.http, "POST", f"/v2/repository/models/{quote(name, safe='')}/{verb}", body)


EVIL_NAMES = ["../outside", "..", ".", "/etc", "a/b", "a\0b", "x" * 5000, "echo/../echo", "\n", "~root", "é" * 300]


@pytest.mark.parametrize("name", EVIL_NAMES)
@pytest.mark.parametrize("verb", ["load", "unload"])
def test_evil_model_names_are_refused(victim: Victim, name: str, verb: str) -> None:
    answer = load(victim, name, verb=verb)
    if (verb, name) == ("unload", "~root"):
        # It could be a model's name, and is none's: nothing is left to unload.
        assert answer.status == 200
        return
    assert answer.status in (400, 404), answer
    assert answer.error


CONFIG = json.dumps({"backend": "python", "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]})
SOURCE = base64.b64encode(b"class Model:\n    def infer(self, inputs):\n        return {}\n").decode()


@pytest.mark.parametrize(
    "parameters",
    [
        {"config": CONFIG, "file:../../escape.py": SOURCE},
        {"config": CONFIG, "file:1/../../../escape.py": SOURCE},
        {"config": CONFIG, "file:/tmp/escape.py": SOURCE},
        {"config": CONFIG, "file:": SOURCE},
        {"config": CONFIG, "file:1/a\0b": SOURCE},
        {"config": CONFIG, "file:1/" + "n" * 5000: SOURCE},
        {"config": CONFIG, "file:1//model.py": SOURCE},
        {"config": CONFIG, "file:1/model.py": "not base64!"},
        {"file:1/model.py": SOURCE},
        {"config": "not json"},
        {"config": "[" * 100_000},
        {"config": json.dumps({"backend": "../../evil"}), "file:1/model.py": SOURCE},
        {"config": json.dumps({"max_batch_size": -5})},
        {"config": json.dumps({"max_batch_size": 2**40})},
        {"config": json.dumps({"instance_group": [{"count": 2**31 - 1}]})},
        {"config": json.dumps({"unheard_of": 1})},
        {"config": 5},
        {"unheard_of": "x"},
        ["config"],
    ],
)
def test_evil_load_parameters_are_refused(victim: Victim, repository: Path, parameters: Any) -> None:
    answer = load(victim, "echo", parameters)
    assert answer.status == 400, answer
    assert answer.error
    assert not list(repository.parent.rglob("escape.py"))
    assert not Path("/tmp/escape.py").exists()


def test_unknown_names_leave_no_trace(victim: Victim) -> None:
    for number in range(150):
        assert load(victim, f"unknown_{number}").status == 404
        assert load(victim, f"unknown_{number}_{'x' * 1000}").status == 400
    index = json.loads(ask(victim.http, "POST", "/v2/repository/index").body)
    assert not [row for row in index if row["name"].startswith("unknown_")]
    # A stranger's load request must not take the server out of its balancer.
    assert ask(victim.http, "GET", "/v2/health/ready").status == 200


@pytest.mark.parametrize(
    "body",
    [
        {"key": "../etc/passwd", "byte_size": 8},
        {"key": "/../../etc/passwd", "byte_size": 8},
        {"key": "//etc/passwd", "byte_size": 8},
        {"key": "", "byte_size": 8},
        {"key": ".", "byte_size": 8},
        {"key": "a\0b", "byte_size": 8},
        {"key": "k" * 10_000, "byte_size": 8},
        {"key": 5, "byte_size": 8},
        {"key": "no_such_key_of_this_test", "byte_size": 8},
        {"key": "k", "byte_size": 0},
        {"key": "k", "byte_size": -1},
        {"key": "k", "byte_size": 2**70},
        {"key": "k", "byte_size": 8, "offset": -1},
        {"key": "k", "byte_size": 8, "offset": 2**70},
        {"key": "k", "byte_size": True},
        {"byte_size": 8},
        {"key": "k"},
        {},
    ],
)
def test_evil_shared_memory_is_refused(victim: Victim, body: dict[str, Any]) -> None:
    path = "/v2/systemsharedmemory/region/evil/register"
    answer = ask(victim.http, "POST", path, json.dumps(body).encode())
    assert answer.status == 400, answer
    assert answer.error
    assert json.loads(ask(victim.http, "GET", "/v2/systemsharedmemory/status").body) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/logging", {"log_verbose_level": "x"}),
        ("/v2/logging", {"log_info": "maybe"}),
        ("/v2/logging", {"unheard_of": 1}),
        ("/v2/logging", {"log_verbose_level": 10**30}),
        ("/v2/trace/setting", {"unheard_of": "x"}),
        ("/v2/trace/setting", {"trace_rate": "x"}),
        ("/v2/repository/index", {"ready": "yes"}),
        ("/v2/repository/models/echo/unload", {"parameters": {"unload_dependents": "x"}}),
        ("/v2/repository/models/echo/unload", {"parameters": []}),
    ],
)
def test_bad_settings_are_400(victim: Victim, path: str, body: dict[str, Any]) -> None:
    answer = ask(victim.http, "POST", path, json.dumps(body).encode())
    assert answer.status == 400, answer
    assert answer.error
