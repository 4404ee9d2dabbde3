"""The controllers' metrics page and list of scrape targets, over a real store."""

from __future__ import annotations

import re
from pathlib import Path

from api_process import KEYS, Api, with_api
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families

from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, Split
from isochrone.control.state.rollout_records import ABORTED, CANARY, Change, RolloutRecord, VerdictRecord

PAGE = Path(__file__).parents[3] / "docs" / "monitoring.md"
_PREFIX = "isochrone_controller_"


async def samples(api: Api) -> dict[tuple[str, ...], float]:
    """By name without the prefix, and the values of the labels, sorted by the names of the labels."""
    answer = await api.client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name.removeprefix(_PREFIX), *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name.startswith(_PREFIX)
    }


async def serving(api: Api) -> None:
    await api.apply()
    models = {"detector": Assignment("1", "d1", pools=("cpu",)), "tracker": Assignment("1", pools=("cpu",))}
    await api.write(KEYS.epoch, EpochRecord(7, models))
    await api.write(KEYS.leader, b"c1")
    await api.write(KEYS.worker("cpu-1"), WorkerRecord("cpu-1", "127.0.0.1", 8000, 8001, 8002, "cpu"))
    await api.write(KEYS.gateway("gw"), GatewayRecord("gw", "::1", 8080, 9000, epoch=7))


def test_an_empty_store_has_a_page(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        assert await samples(api) == {("has_leader",): 0, ("store_connected",): 1, ("epoch",): 0}
        assert await api.get("/v1/scrape-targets") == []

    with_api(tmp_path, scenario)


def test_a_fleet_that_serves(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await serving(api)
        assert await samples(api) == {
            ("has_leader",): 1,
            ("store_connected",): 1,
            ("epoch",): 7,
            ("worker_registered", "cpu", "cpu-1"): 1,
            ("gateway_registered", "gw"): 1,
            ("model_served", "detector"): 1,
            ("model_served", "tracker"): 1,
            ("model_share", "detector", "committed", "1"): 1,
            ("model_share", "tracker", "committed", "1"): 1,
        }

    with_api(tmp_path, scenario)


def test_what_is_expected_and_gone_is_shown(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await serving(api)
        await api.remove(KEYS.worker("cpu-1"))
        record = GatewayRecord("gw", "::1", 8080, 9000, epoch=7, unserved={"detector": "no worker has it"})
        await api.write(KEYS.gateway("gw"), record)
        found = await samples(api)
        assert found["worker_registered", "cpu", "cpu-1"] == 0
        assert (found["model_served", "detector"], found["model_served", "tracker"]) == (0, 1)
        await api.remove(KEYS.gateway("gw"))
        found = await samples(api)
        assert found["gateway_registered", "gw"] == 0
        assert found["model_served", "tracker"] == 0

    with_api(tmp_path, scenario)


def test_rollouts_canaries_and_aborts_are_shown(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await serving(api)
        canary = Assignment("1", "d1", pools=("cpu",), canary=Split("2", weight=0.25))
        await api.write(KEYS.epoch, EpochRecord(8, {"detector": canary}))
        change = {"detector": Change("2", "1")}
        await api.write(KEYS.rollout("r1"), RolloutRecord("r1", change, CANARY, step=1))
        found = await samples(api)
        assert found["model_share", "detector", "committed", "1"] == 0.75
        assert found["model_share", "detector", "canary", "2"] == 0.25
        assert found["rollout", "detector", "r1", "canary", "1"] == 1
        failed = (VerdictRecord("canary at 25%", False, "slower"),)
        for record, cause in (
            (RolloutRecord("r1", change, ABORTED, verdicts=failed), "evaluation"),
            (RolloutRecord("r1", change, ABORTED, verdicts=failed, abort_asked="wrong file"), "user"),
            (RolloutRecord("r1", change, ABORTED, reason="cpu-1 could not load it"), "failure"),
        ):
            await api.write(KEYS.rollout("r1"), record)
            found = await samples(api)
            assert found["rollout_aborted", cause, "detector", "r1"] == 1
            assert not any(key[0] == "rollout" for key in found)

    with_api(tmp_path, scenario)


def test_the_targets_are_what_is_registered(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await serving(api)
        without = WorkerRecord("cpu-2", "10.0.0.8", 8000, 8001, 0, "cpu")
        await api.write(KEYS.worker("cpu-2"), without)
        assert await api.get("/v1/scrape-targets") == [
            {"targets": ["127.0.0.1:8002"], "labels": {"role": "worker", "name": "cpu-1", "pool": "cpu"}},
            {"targets": ["[::1]:9000"], "labels": {"role": "gateway", "name": "gw"}},
        ]

    with_api(tmp_path, scenario)


def test_a_gateway_that_is_cut_off_stays_a_target_until_it_leaves(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await serving(api)
        await api.write(KEYS.known_gateway("gw"), b"first")
        both = await api.get("/v1/scrape-targets")
        await api.remove(KEYS.gateway("gw"))
        assert await api.get("/v1/scrape-targets") == both
        # It comes back at another address.
        await api.write(KEYS.gateway("gw"), GatewayRecord("gw", "10.0.0.9", 8080, 9001, epoch=7))
        moved = await api.get("/v1/scrape-targets")
        assert [each["targets"] for each in moved] == [["127.0.0.1:8002"], ["10.0.0.9:9001"]]
        await api.remove(KEYS.gateway("gw"))
        await api.remove(KEYS.known_gateway("gw"))
        assert [each["labels"]["name"] for each in await api.get("/v1/scrape-targets")] == ["cpu-1"]
        # A worker that is lost gets no requests: its page is of no use.
        await api.remove(KEYS.worker("cpu-1"))
        assert await api.get("/v1/scrape-targets") == []

    with_api(tmp_path, scenario)


def test_a_gateway_whose_address_another_has_is_no_target(tmp_path: Path) -> None:
    """The page would count twice."""

    async def scenario(api: Api) -> None:
        await serving(api)
        await api.write(KEYS.known_gateway("gw"), b"first")
        assert len(await api.get("/v1/scrape-targets")) == 2
        await api.remove(KEYS.gateway("gw"))
        await api.write(KEYS.gateway("front"), GatewayRecord("front", "::1", 8080, 9000, epoch=7))
        names = [each["labels"]["name"] for each in await api.get("/v1/scrape-targets")]
        assert names == ["cpu-1", "front"]

    with_api(tmp_path, scenario)


def test_open_metrics_and_nonsense_in_accept(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await serving(api)
        asked = {"accept": "application/openmetrics-text;version=1.0.0"}
        answer = await api.client.get("/metrics", headers=asked)
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert f"{_PREFIX}epoch" in {family.name for family in parse_open_metrics(answer.text)}
        answer = await api.client.get("/metrics", headers={"accept": "application/openmetrics-text;version=x"})
        assert answer.status_code == 200

    with_api(tmp_path, scenario)


def test_the_page_names_all_of_them(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        text = (await api.client.get("/metrics")).text
        shown = set(re.findall(rf"^# TYPE ({_PREFIX}\w+) gauge$", text, re.MULTILINE))
        assert set(re.findall(rf"`({_PREFIX}[a-z_]+)", PAGE.read_text())) == shown

    with_api(tmp_path, scenario)
