"""The read-only operations of model placement, over a real store."""

from __future__ import annotations

from pathlib import Path

from api_process import KEYS, Api, with_api

from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord

MIB = 2**20
SERVED = EpochRecord(
    3, {"detector": Assignment("1", pools=("cpu",), memory=60 * MIB), "tracker": Assignment("1", pools=("cpu",))}
)


async def ready(api: Api, *memories: int) -> None:
    await api.apply()
    await api.write(KEYS.epoch, SERVED)
    for number, memory in enumerate(memories, 1):
        worker = WorkerRecord(f"cpu-{number}", f"10.0.0.{number}", 8000, 8001, pool="cpu", memory=memory * MIB)
        await api.write(KEYS.worker(worker.name), worker)


def test_a_plan_says_what_moves_and_what_was_assumed(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await ready(api, 100, 50)
        revision = api.mirror.revision
        plan = await api.get("/v1/placement")
        # The second worker's memory is too small for what it has.
        assert [(move["action"], move["model"], move["worker"], move["reason"]) for move in plan["moves"]] == [
            ("remove", "detector", "cpu-2", "memory")
        ]
        detector, tracker = plan["models"]
        assert (detector["before"], detector["after"], detector["memory"]) == (["cpu-1", "cpu-2"], ["cpu-1"], 60 * MIB)
        assert (tracker["after"], tracker["unplaced"], tracker["short"]) == (["cpu-1", "cpu-2"], "", "")
        assert [(each["name"], each["used"], each["state"]) for each in plan["workers"]] == [
            ("cpu-1", 60 * MIB, "serving"),
            ("cpu-2", 0, "serving"),
        ]
        assert plan["without_room"] == ["cpu-1"]
        assert any("rate of detector, tracker is not measured" in each for each in plan["assumptions"])
        await api.mirror.changed(revision, 0.0)
        assert api.mirror.revision == revision

    with_api(tmp_path, scenario)


def test_figures_and_losses_can_be_stated(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await ready(api, 100, 100, 100)
        query = "rate=detector=1&rate=tracker=1&run_ms=detector=2&without=cpu-1"
        plan = await api.get(f"/v1/placement?{query}")
        assert {each["name"]: each["state"] for each in plan["workers"]}["cpu-1"] == "lost"
        # Cold: one of two is enough.
        assert [len(each["after"]) for each in plan["models"]] == [1, 1]
        assert {move["reason"] for move in plan["moves"]} == {"cold"}

    with_api(tmp_path, scenario)


def test_a_model_is_explained_worker_by_worker(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await ready(api, 100, 100)
        found = await api.get("/v1/placement/models/detector?without=cpu-2")
        assert [(each["worker"], each["has"], each["rule"]) for each in found["workers"]] == [
            ("cpu-1", True, ""),
            ("cpu-2", False, "lost"),
        ]
        assert (found["model"], found["together"], found["missing"]) == ("detector", ["detector"], "")
        assert found["workers"][0]["detail"] == "it takes 60 MiB"

    with_api(tmp_path, scenario)


def test_nonsense_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        assert "isochrone apply" in (await api.get("/v1/placement", 404))["error"]
        await ready(api, 100)
        unknown = await api.get("/v1/placement/models/nothing", 404)
        assert unknown["error"] == "model 'nothing': expected one of the known models detector, tracker"
        for query, expected in (
            ("rate=detector", "rate: expected MODEL=NUMBER, given 'detector'"),
            ("rate==4", "rate: expected MODEL=NUMBER, given '=4'"),
            ("run_ms=detector=nan", "run_ms of detector: expected a number above 0, given nan"),
            ("rate=other=1", "rate: expected a model of the fleet (detector, tracker), given 'other'"),
            ("without=gpu-9", "without: expected a worker of the fleet (cpu-1), given 'gpu-9'"),
        ):
            assert (await api.get(f"/v1/placement?{query}", 400))["error"] == expected

    with_api(tmp_path, scenario)


def test_an_epoch_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await ready(api, 100)
        await api.write(KEYS.epoch, b"broken")
        assert "cannot be read" in (await api.get("/v1/placement", 503))["error"]

    with_api(tmp_path, scenario)
