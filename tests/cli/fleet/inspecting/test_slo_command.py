"""``isochrone slo``: the table, the history's length, and the status that a CI reads."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from isochrone.cli.api_client import ApiClient
from isochrone.cli.fleet.inspecting.slo_view import picture
from isochrone.cli.main import app
from isochrone.control.api.messages import ModelSlo, SloAnswer, SloWindow

NOW = 1_800_000_000


def model(name: str, bad: int, state: str, spent_in_s: float | None = None) -> ModelSlo:
    good = 10_000 - bad
    windows = tuple(SloWindow(s, good, bad, good / 10_000, bad / 100) for s in (300, 3600, 21_600, 86_400))
    return ModelSlo(name, 50.0, state, windows, bad / 100, max(0.0, 1 - bad / 100), spent_in_s)


UNUSED = ModelSlo(
    "idle", 200.0, "no requests", tuple(SloWindow(s, 0, 0, None, 0.0) for s in (300, 3600, 21_600, 86_400)), 0.0, 1.0
)
ANSWER = SloAnswer(NOW, NOW - 720, 0.99, (model("a", 0, "kept"), model("b", 200, "spent", 0.0), UNUSED))


def shown(answer: SloAnswer) -> str:
    console = Console(width=200, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(picture(answer))
    return capture.get()


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The objectives that were asked for."""
    asked: list[object] = []

    def get(self: ApiClient, path: str, kind: type[SloAnswer], **query: object) -> SloAnswer:
        assert (path, kind) == ("/v1/slo", SloAnswer)
        asked.append(query["objective"])
        return ANSWER

    monkeypatch.setattr(ApiClient, "get", get)
    return asked


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["slo", *words, "--api", "http://127.0.0.1:9"])
    return result.exit_code, result.output


def test_the_table() -> None:
    said = shown(ANSWER)
    assert re.search(r"objective 99 %  history since \d\d:\d\d, 12 min", said)
    lines = {line.split()[0]: line for line in said.splitlines() if line}
    assert "100.00 %" in lines["a"]
    assert lines["b"].split()[-3:] == ["0%", "now", "spent"]
    assert "98.00 %" in lines["b"]
    assert "2.0" in lines["b"]
    assert lines["idle"].count("–") == 10


def test_how_much_history_there_is() -> None:
    def head(since: int) -> str:
        return shown(msgspec.structs.replace(ANSWER, since=since)).splitlines()[0]

    assert head(NOW - 40).endswith(", 40 s")
    assert head(NOW - 7500).endswith(", 2 h 05 min")
    assert head(NOW - 86_400).endswith("history of 24 h")
    assert "no history yet" in head(0)
    assert "isochrone apply" in shown(SloAnswer(NOW, 0, 0.99, ()))


def test_nearly_all_is_not_all() -> None:
    almost = SloWindow(300, 99_999, 1, 0.99999, 0.001)
    assert "100.00" not in shown(
        msgspec.structs.replace(ANSWER, models=(ModelSlo("a", 1.0, "kept", (almost,), 0.0, 1.0),))
    )


def test_check_and_one_model(answered: list[object]) -> None:
    assert run()[0] == 0
    assert run("--check")[0] == 1
    assert run("a", "--check")[0] == 0
    assert run("b", "--check", "--json")[0] == 1
    assert answered == [0.99] * 4
    status, said = run("a", "--json", "--objective", "99.9")
    assert (status, answered[-1]) == (0, pytest.approx(0.999))
    assert [each["model"] for each in json.loads(said)["models"]] == ["a"]


def test_a_model_that_is_not_counted_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = msgspec.structs.replace(UNUSED, model="lost", state="not counted")
    answer = msgspec.structs.replace(ANSWER, models=(UNUSED, missing))
    monkeypatch.setattr(ApiClient, "get", lambda *_, **__: answer)
    assert [run(*words)[0] for words in (("idle", "--check"), ("lost", "--check"), ("--check",), ())] == [0, 1, 1, 0]
    assert "not counted" in shown(answer)


def test_words_that_make_no_sense(answered: list[object]) -> None:
    status, said = run("c")
    assert (status, "expected one of the known models a, b, idle, given 'c'" in said) == (1, True)
    status, said = run("--objective", "100")
    assert (status, "--objective: expected" in said) == (1, True)


def test_without_a_controller() -> None:
    status, said = run()
    assert status == 1
    assert "no controller answers at http://127.0.0.1:9" in said
