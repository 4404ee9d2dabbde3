"""Figures and error budgets over the control API: of the history and the store, and how bad queries are refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_process import FLEET, KEYS, Api, with_api

from fleet_records import Records
from isochrone.control.api.answers.figures import figures_answer
from isochrone.control.api.answers.slo import slo_answer
from isochrone.control.api.application import create_app
from isochrone.control.figures.frames import Frame, GatewayFigures, ModelFigures, StageFigures, WorkerFigures
from isochrone.control.figures.history import History
from isochrone.control.state.records import SloTotalsRecord


def history_of(now: int) -> History:
    """Three seconds of a good model and a bad one."""
    history = History()
    for at in range(now - 2, now + 1):
        models = {
            ("detector", "1"): ModelFigures(
                "detector", "1", 10, durations={0: 9, 20: 1}, sum_ns=10**9, stages={"gateway": StageFigures(10**7, 10)}
            ),
            ("tracker", "2"): ModelFigures("tracker", "2", failed=5),
        }
        gateways = {"gw": GatewayFigures("gw", requests=15, own=StageFigures(10**7, 10))}
        history.add(Frame(at, models, {"w": WorkerFigures("w", in_flight=2, wait_ns=10**6)}, gateways))
    return history


async def ask(api: Api, history: History, path: str, status: int = 200) -> Any:
    app = create_app(api.store, api.mirror, KEYS, history=history)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8003") as client:
        answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_the_latest_second_and_the_frames_before_it(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        history = history_of(1_800_000_100)
        found = await ask(api, history, "/v1/figures?seconds=2")
        assert [frame["at"] for frame in found["frames"]] == [1_800_000_099, 1_800_000_100]
        assert found["since"] <= 1_800_000_098
        latest = found["latest"]
        assert [each["model"] for each in latest["models"]] == ["detector", "tracker"]
        detector = latest["models"][0]
        assert (detector["answered"], detector["mean_ms"], detector["stages"]) == (10, 100.0, {"gateway": 1.0})
        assert [count for _, count in detector["durations"]] == [9, 1]
        assert latest["workers"][0] == {
            "name": "w",
            "tier": "",
            "in_flight": 2,
            "queued": 0,
            "wait_ms": 1.0,
            "round_trip_ms": None,
            "healthy": True,
            "ejected": False,
            "draining": False,
            "standby": False,
        }
        assert found["frames"][0]["workers"] == []
        assert found["frames"][0]["gateways"][0]["requests"] == 15
        only = await ask(api, history, "/v1/figures?seconds=86400&model=tracker")
        assert {each["model"] for frame in only["frames"] for each in frame["models"]} == {"tracker"}
        empty = await ask(api, History(), "/v1/figures")
        assert empty == {"since": 0, "latest": None, "frames": []}

    with_api(tmp_path, scenario)


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/v1/figures?seconds=-1", "seconds"),
        ("/v1/figures?seconds=86401", "seconds"),
        ("/v1/slo?objective=1", "objective"),
        ("/v1/slo?objective=nan", "objective"),
        ("/v1/slo?objective=many", "objective"),
    ],
)
def test_queries_that_make_no_sense(path: str, word: str, tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        assert (await api.get(path, 400))["error"].startswith(f"{word}: expected")

    with_api(tmp_path, scenario)


def test_budgets_of_the_store_and_of_the_latest_minutes(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        assert (await api.get("/v1/slo"))["models"] == []
        await api.apply(FLEET.replace("tracker: {version: 1}", "tracker: {version: 1, slo: {deadline_ms: 20}}"))
        fresh = await api.get("/v1/slo?objective=0.9")
        assert (fresh["since"], fresh["objective"]) == (0, 0.9)
        assert [(each["model"], each["limit_ms"], each["state"]) for each in fresh["models"]] == [
            ("detector", 200.0, "no requests"),
            ("tracker", 20.0, "no requests"),
        ]
        now = int(time.time())
        record = SloTotalsRecord(now // 60 - 60, now // 60 - 120, ((0, 970, 0), (60, 1000, 0)))
        await api.write(KEYS.slo_totals_of("detector"), record)
        detector, tracker = (await ask(api, history_of(now), "/v1/slo"))["models"]
        assert [each["good"] for each in detector["windows"]] == [30, 30, 2000, 2000]
        assert (tracker["state"], tracker["used"], tracker["left"]) == ("spent", pytest.approx(100.0), 0.0)
        assert (await ask(api, history_of(now), "/v1/slo"))["since"] == record.since * 60

    with_api(tmp_path, scenario)


def test_many_models_have_budgets_and_those_that_are_not_counted_say_so() -> None:
    records = Records("""
name: plant
pools: {cpu: {workers: 1}}
models: {m0000: {version: 1}, quiet: {version: 1}}
""")
    history, now = History(), 1_800_000_000
    for at in range(now, now + 60):
        models = {(f"m{n:04}", "1"): ModelFigures(f"m{n:04}", "1", 10, durations={3: 10}) for n in range(200)}
        # A new version of a model that has a place.
        history.add(Frame(at, {**models, ("m0000", "2"): ModelFigures("m0000", "2", failed=10)}))
    found = {each.model: each for each in slo_answer(records.view, history.budget_frames(), 0.99, now + 59).models}
    assert len(found) == 201
    assert (found["m0000"].state, found["m0199"].state, found["quiet"].state) == ("spent", "kept", "no requests")
    assert (found["m0000"].windows[0].good, found["m0000"].windows[0].bad) == (600, 600)
    # A gateway with more models than its page has.
    history.add(Frame(now + 60, is_whole=False))
    found = {each.model: each for each in slo_answer(records.view, history.budget_frames(), 0.99, now + 60).models}
    assert (found["m0199"].state, found["quiet"].state) == ("kept", "not counted")
    # The store has no place for another model.
    for number in range(256):
        records.put(KEYS.slo_totals_of(f"x{number}"), SloTotalsRecord(now // 60, now // 60, ((0, 1, 0),)))
    found = {each.model: each for each in slo_answer(records.view, (), 0.99, now + 60).models}
    assert (found["x1"].state, found["quiet"].state) == ("kept", "not counted")


def test_a_day_of_many_models_is_answered() -> None:
    """Without an event loop, as the thread of the API does it."""
    history = History()
    for at in range(1_800_000_000, 1_800_000_400):
        history.add(Frame(at, {(f"m{n}", "1"): ModelFigures(f"m{n}", "1", 1, durations={5: 1}) for n in range(20)}))
    answer = figures_answer(history.latest(), history.frames(86_400), history.since)
    assert sum(each.answered for frame in answer.frames for each in frame.models) == 400 * 20
