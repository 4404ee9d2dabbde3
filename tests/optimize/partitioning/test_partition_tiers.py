"""A worker as a place to measure: what is loaded is unloaded, whatever happens."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from isochrone.errors import Unavailable
from isochrone.models.repository.names import is_measured
from isochrone.optimize.partitioning.tiers import Rejected, TierWorker

Answers = Callable[[str], httpx.Response]


def worker_of(answers: Answers, token: str = "", pool: str = "") -> tuple[TierWorker, list[str]]:
    calls: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        call = request.url.path.rsplit("/", 1)[-1]
        calls.append(call)
        assert request.headers.get("x-isochrone-control", "") == (token if call in ("load", "unload") else "")
        return answers(call)

    worker = TierWorker("edge", "edge.invalid:8000", token=token, pool=pool)
    worker._client.close()
    worker._client = httpx.Client(base_url=worker.url, transport=httpx.MockTransport(handle))
    return worker, calls


def fail_at(what: str, with_: Exception | int) -> Answers:
    def answers(call: str) -> httpx.Response:
        if call != what:
            return httpx.Response(200)
        if isinstance(with_, int):
            return httpx.Response(with_, text="no")
        raise with_

    return answers


def test_a_load_that_is_not_answered_is_unloaded() -> None:
    worker, calls = worker_of(fail_at("load", httpx.ReadTimeout("late")))
    with worker, pytest.raises(Unavailable, match="does not answer"), worker.loaded({}):
        pass
    assert calls == ["load", "unload"]


def test_an_interrupted_load_is_unloaded() -> None:
    def answers(call: str) -> httpx.Response:
        if call == "load":
            raise KeyboardInterrupt
        return httpx.Response(200)

    worker, calls = worker_of(answers)
    with worker, pytest.raises(KeyboardInterrupt), worker.loaded({}):
        pass
    assert calls == ["load", "unload"]


def test_a_rejected_load_left_nothing_to_unload() -> None:
    worker, calls = worker_of(fail_at("load", 400))
    with worker, pytest.raises(Rejected, match="answered 400: no"), worker.loaded({}):
        pass
    assert calls == ["load"]


def test_a_load_that_is_too_large_names_the_flag_of_the_worker() -> None:
    worker, _ = worker_of(fail_at("load", 413))
    with worker, pytest.raises(Rejected, match="with a larger --max-body-bytes"), worker.loaded({}, b"model"):
        pass


def test_a_tier_that_is_gone_needs_no_unload() -> None:
    worker, calls = worker_of(fail_at("unload", httpx.ConnectError("gone")))
    with worker, worker.loaded({}):
        pass
    assert calls == ["load", "unload"]


def test_a_rejected_unload_is_an_error() -> None:
    worker, _ = worker_of(fail_at("unload", 500))
    with worker, pytest.raises(Rejected, match="answered 500"), worker.loaded({}):
        pass


@pytest.mark.parametrize(
    ("token", "pool", "reason", "remedy"),
    [
        ("", "", "start the server with --allow-file-overrides", "$"),
        ("secret", "near", "start the server with --allow-file-overrides", r"pools.near.arguments: \[--allow-file-ov"),
        ("", "", "this worker belongs to a fleet", "measure it with --tiers NEAR,FAR$"),
        ("old", "near", "this worker belongs to a fleet", "run the command again$"),
    ],
)
def test_a_load_that_is_forbidden_says_what_to_change(token: str, pool: str, reason: str, remedy: str) -> None:
    worker, calls = worker_of(lambda call: httpx.Response(403, text=reason), token, pool)
    with worker, pytest.raises(Rejected, match=f"{reason}.*{remedy}"), worker.loaded({}):
        pass
    assert calls == ["load"]
    assert "secret" not in repr(worker)


def test_every_load_has_a_name_of_its_own_that_controllers_know() -> None:
    worker, _ = worker_of(lambda call: httpx.Response(200), "secret")
    with worker:
        with worker.loaded({}) as first:
            pass
        with worker.loaded({}) as second:
            pass
    assert first != second
    assert is_measured(first)


@pytest.mark.parametrize(
    ("token", "seconds", "named"), [("secret", 0.0, True), ("secret", 1e6, False), ("", 0.0, False)]
)
def test_a_measurement_that_controllers_ended_names_them(
    token: str, seconds: float, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isochrone.optimize.partitioning.tiers.MEASURED_SECONDS", seconds)
    worker, _ = worker_of(fail_at("infer", 404), token)
    with worker, worker.loaded({}) as name, pytest.raises(Rejected, match="answered 404") as raised:
        worker.answer(name, {})
    assert ("controllers unload a measured model" in str(raised.value)) == named
