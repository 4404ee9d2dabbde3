"""The control API over a real store: every operation, what it writes, and how it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from api_process import FLEET, KEYS, Api, with_api

from isochrone.control.state.codec import decode
from isochrone.control.state.process_records import GatewayRecord, RestartsRecord, WorkerRecord
from isochrone.control.state.records import AccessFaultRecord, Assignment, EpochRecord, FleetRecord, Split
from isochrone.control.state.rollout_records import ABORTED, CANARY, DONE, PREPARING, Change, RolloutRecord

SERVED = EpochRecord(
    7, {"detector": Assignment("1", "d1", previous="3", pools=("cpu",)), "tracker": Assignment("1", pools=("cpu",))}
)


async def ready(api: Api) -> None:
    """A fleet that serves."""
    await api.apply()
    await api.write(KEYS.epoch, SERVED)
    await api.write(KEYS.leader, b"c1")
    await api.write(KEYS.worker("cpu-1"), WorkerRecord("cpu-1", "127.0.0.1", 8000, 8001, 8002, "cpu"))
    await api.write(KEYS.gateway("gw-1"), GatewayRecord("gw-1", "::1", 8080, 9000, epoch=6))
    await api.write(KEYS.known_gateway("gw-1"), b"i")
    await api.write(KEYS.known_gateway("gw-2"), b"i")


async def stored(api: Api, identity: str) -> RolloutRecord:
    entry = await api.store.get(KEYS.rollout(identity))
    assert entry is not None
    return decode(entry.value, RolloutRecord)


def test_an_inference_request_is_sent_to_the_gateways(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        path = "/v2/models/detector/infer"
        said = f"no such path: {path}; this is a controller; send inference requests to a gateway"
        assert (await api.ask("POST", path, {}, 404)) == {"error": said, "code": "not_found"}
        await ready(api)
        assert (await api.ask("POST", path, {}, 404))["error"] == f"{said} ([::1]:8080)"
        assert "gateway" in (await api.get("/v2", 404))["error"]
        assert (await api.get("/v22", 404))["error"] == "no such path: /v22; /v1/openapi.json lists them"

    with_api(tmp_path, scenario)


def test_status_tells_everything_at_once(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        empty = await api.get("/v1/status")
        assert (empty["access_fault"], empty["restarts"]) == (None, None)
        assert (empty["fleet"], empty["generation"], empty["epoch"], empty["leader"]) == ("plant", 0, 0, "")
        await ready(api)
        await api.write(KEYS.rollout("r1"), RolloutRecord("r1", {"detector": Change("2", "1")}, CANARY))
        await api.write(KEYS.rollout("r0"), RolloutRecord("r0", {"detector": Change("1")}, DONE))
        split = msgspec.structs.replace(SERVED.models["detector"], canary=Split("2", weight=0.1))
        await api.write(KEYS.epoch, EpochRecord(8, {**SERVED.models, "detector": split}))
        await api.ask("POST", "/v1/drains/cpu-1")
        await api.write(KEYS.restarts, RestartsRecord(1, ("cpu-1",), 5.0))
        await api.write(KEYS.access_fault, AccessFaultRecord("no YAML", "c1", 5.0))
        status = await api.get("/v1/status")
        assert (status["generation"], status["epoch"], status["leader"]) == (1, 8, "c1")
        assert status["restarts"] == {"generation": 1, "processes": ["cpu-1"], "at": 5.0}
        assert status["access_fault"] == {"reason": "no YAML", "by": "c1", "at": 5.0}
        fleet = await api.store.get(KEYS.fleet)
        assert fleet is not None
        moved = msgspec.structs.replace(decode(fleet.value, FleetRecord), engine="kubernetes")
        await api.write(KEYS.fleet, moved)
        assert (await api.get("/v1/status"))["restarts"] is None
        await api.write(KEYS.fleet, fleet.value)
        assert status["store"]["connected"] is True
        detector, tracker = status["models"]
        assert (detector["version"], detector["previous"], detector["state"]) == ("1", "3", "canary")
        assert (detector["canary"]["version"], detector["canary"]["weight"], detector["rollout"]) == ("2", 0.1, "r1")
        assert (tracker["state"], tracker["rollout"], tracker["canary"]) == ("serving", "", None)
        (worker,) = status["workers"]
        assert (worker["address"], worker["metrics"], worker["pool"]) == ("127.0.0.1:8000", "127.0.0.1:8002", "cpu")
        assert worker["draining"] is True
        assert worker["draining_since"] > 1e9
        one, other = status["gateways"]
        assert (one["name"], one["address"], one["epoch"], one["registered"]) == ("gw-1", "[::1]:8080", 6, True)
        assert (other["name"], other["registered"]) == ("gw-2", False)
        assert [rollout["identity"] for rollout in status["rollouts"]] == ["r1"]

    with_api(tmp_path, scenario)


def test_a_file_is_planned_applied_and_read_back(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        assert (await api.get("/v1/fleet", 404))["code"] == "not_found"
        body = {"text": FLEET, "directory": str(tmp_path)}
        planned = await api.ask("PUT", "/v1/fleet?dry_run=1", body)
        assert (planned["applied"], planned["generation"]) == (False, 0)
        assert {step["action"] for step in planned["steps"]} == {"start", "rollout"}
        assert await api.store.get(KEYS.fleet) is None
        applied = await api.ask("PUT", "/v1/fleet", {**body, "generation": 0})
        assert (applied["applied"], applied["generation"], applied["steps"]) == (True, 1, planned["steps"])
        read = await api.get("/v1/fleet")
        assert (read["text"], read["by"], read["directory"]) == (FLEET, "ada@desk", str(tmp_path))
        refused = await api.apply(FLEET.replace("workers: 1", "workers: 2"), 409, generation=0)
        assert "generation 1 (by ada@desk), not 0" in refused["error"]

    with_api(tmp_path, scenario)


def test_a_plan_warns_of_a_lockout_and_refuses_nothing(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await ready(api)
        (tmp_path / "access.yaml").write_text("tokens: {}")
        text = f"{FLEET}\nsecurity: {{access: access.yaml}}\n"
        body = {"text": text, "directory": str(tmp_path)}
        planned = await api.ask("PUT", "/v1/fleet?dry_run=1", body)
        (warning,) = [step for step in planned["steps"] if step["action"] == "warn"]
        assert warning["name"] == "security.access"
        assert "nobody will be allowed to apply a file" in warning["detail"]
        body["retire"] = True
        assert (await api.ask("PUT", "/v1/fleet", body))["generation"] == 2
        again = await api.ask("PUT", "/v1/fleet", body)
        assert {step["action"] for step in again["steps"]} == {"ignore", "warn"}
        assert again["generation"] == 2, "a warning is no change"

    with_api(tmp_path, scenario)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: plant\npols: {}\n", "plant.yaml:2: pols: expected a known key (did you mean 'pools'?)"),
        ("name: other\n", "name: expected 'plant'"),
        (
            FLEET.replace("tracker: {version: 1}", "tracker: {version: 9}"),
            "a version of tracker that is there (1, 2, 3, 4, 5, 6)",
        ),
    ],
)
def test_a_wrong_file_is_told_by_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    async def scenario(api: Api) -> None:
        assert said in (await api.apply(text, 400, file="plant.yaml"))["error"]
        assert await api.store.get(KEYS.fleet) is None

    with_api(tmp_path, scenario)


def test_a_rollout_is_started_read_aborted_and_its_events_are_kept(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await ready(api)
        started = await api.ask("POST", "/v1/rollouts", {"changes": {"tracker": "2"}}, 201)
        assert (started["identity"], started["by"]) == ("r1", "ada@desk")
        assert (await stored(api, "r1")).changes["tracker"].before == "1"
        taken = await api.ask("POST", "/v1/rollouts", {"changes": {"tracker": "3"}}, 409)
        assert "rollout r1 is changing tracker" in taken["error"]
        again = await api.ask("POST", "/v1/rollouts", {"changes": {"detector": "2"}, "by": "bot", "canary": False}, 201)
        assert (again["identity"], again["by"], again["canary"]) == ("r2", "bot", None)
        assert [each["identity"] for each in (await api.get("/v1/rollouts"))["rollouts"]] == ["r1", "r2"]
        assert (await api.get("/v1/rollouts/r1")) == started
        assert "the latest: r1, r2" in (await api.get("/v1/rollouts/r7", 404))["error"]
        await api.ask("POST", "/v1/rollouts/r1/abort", {"reason": "no"})
        assert (await stored(api, "r1")).abort_asked == "no (by ada@desk)"
        events = (await api.get("/v1/events"))["events"]
        assert [(event["what"], event["about"]) for event in events] == [
            ("fleet applied", "generation 1"),
            ("rollout started", "r1"),
            ("rollout started", "r2"),
            ("rollout abort asked", "r1"),
        ]
        after = await api.get(f"/v1/events?after={events[1]['revision']}&limit=1")
        assert after["events"] == events[2:3]
        assert (await api.get("/v1/events?limit=1"))["events"] == events[-1:]
        assert (await api.get("/v1/events?limit=0"))["events"] == []

    with_api(tmp_path, scenario)


def test_promote_and_rollback(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await ready(api)
        await api.write(KEYS.rollout_number, b"1")
        await api.write(KEYS.rollout("r1"), RolloutRecord("r1", {"tracker": Change("2", "1")}, CANARY))
        await api.ask("POST", "/v1/rollouts/r1/promote")
        assert (await stored(api, "r1")).promote_asked
        instead = await api.ask("POST", "/v1/models/tracker/rollback", status=201)
        assert instead["identity"] == "r1"
        assert (await stored(api, "r1")).abort_asked
        back = await api.ask("POST", "/v1/models/detector/rollback", status=201)
        assert (back["identity"], back["kind"], back["changes"]["detector"]["version"]) == ("r2", "rollback", "3")

    with_api(tmp_path, scenario)


def test_scale_drain_and_forget(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await ready(api)
        scaled = await api.ask("POST", "/v1/pools/cpu/scale", {"workers": 3})
        assert scaled["generation"] == 2
        assert (await api.get("/v1/fleet"))["spec"]["pools"]["cpu"]["workers"] == 3
        assert "0 to 4" in (await api.ask("POST", "/v1/pools/cpu/scale", {"workers": 9}, 400))["error"]
        assert (await api.ask("POST", "/v1/drains/gw-1"))["done"] == "gw-1 is draining"
        assert (await api.ask("DELETE", "/v1/drains/gw-1"))["done"] == "gw-1 takes work again"
        await api.ask("DELETE", "/v1/drains/gw-1", status=404)
        await api.ask("DELETE", "/v1/known-gateways/gw-1", status=409)
        await api.ask("DELETE", "/v1/known-gateways/gw-2")
        assert [each["name"] for each in (await api.get("/v1/status"))["gateways"]] == ["gw-1"]

    with_api(tmp_path, scenario)


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("GET", "/v1/nowhere", b"", 404, "not_found"),
        ("DELETE", "/v1/status", b"", 405, "method_not_allowed"),
        ("POST", "/v1/rollouts", b"{", 400, "malformed"),
        ("PUT", "/v1/fleet", b'{"text": "\xff"}', 400, "malformed"),
        ("POST", "/v1/rollouts", b'{"changes": ' + b"[" * 100_000, 400, "invalid_argument"),
        ("POST", "/v1/rollouts", b"", 400, "invalid_argument"),
        ("POST", "/v1/rollouts", b'{"changes": {"detector": 2}}', 400, "invalid_argument"),
        ("POST", "/v1/rollouts", b'{"changes": {"detector": "2"}, "cutovr": "fast"}', 400, "invalid_argument"),
        ("POST", "/v1/rollouts", b"x" * (4 * 1024 * 1024 + 1), 413, "too_large"),
        ("PUT", "/v1/fleet", b'{"text": "name: plant", "directory": "models"}', 400, "invalid_argument"),
        ("PUT", "/v1/fleet?dry_run=maybe", b'{"text": "name: plant", "directory": "/"}', 400, "invalid_argument"),
        ("GET", "/v1/events?after=-1", b"", 400, "invalid_argument"),
        ("GET", "/v1/events?limit=1001", b"", 400, "invalid_argument"),
        ("POST", "/v1/rollouts/r1/abort", b"[]", 400, "invalid_argument"),
    ],
)
def test_wrong_requests_are_refused_in_json(
    tmp_path: Path, method: str, path: str, content: bytes, status: int, code: str
) -> None:
    async def scenario(api: Api) -> None:
        response = await api.client.request(method, path, content=content)
        assert (response.status_code, response.json()["code"]) == (status, code)
        assert response.json()["error"]

    with_api(tmp_path, scenario)


def test_a_record_that_cannot_be_read_is_shown_and_decides_nothing(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await ready(api)
        await api.write(KEYS.epoch, b"no JSON")
        status = await api.get("/v1/status")
        assert [fault["key"] for fault in status["faults"]] == [KEYS.epoch]
        # Unreadable is not absent: no rollout may start as if nothing were served.
        refused = await api.client.post("/v1/rollouts", json={"changes": {"detector": "2"}})
        assert (refused.status_code, refused.json()["code"]) == (503, "unreadable_record")
        assert KEYS.epoch in refused.json()["error"]

    with_api(tmp_path, scenario)


def test_an_epoch_that_is_lost_is_restored_on_request(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await ready(api)
        refused = await api.ask("POST", "/v1/epoch/restore", status=409)
        assert "there is nothing to restore" in refused["error"]
        known = api.service.view().epoch
        assert known is not None
        for key in (KEYS.epoch, KEYS.epoch_copy):
            await api.write(key, b"no JSON")
        refused = await api.ask("POST", "/v1/rollouts", {"changes": {"detector": "2"}}, 503)
        assert "isochrone restore-epoch" in refused["error"]
        await api.write(KEYS.served_epoch("gw-1"), known)
        seen = await api.ask("POST", "/v1/epoch/restore?dry_run=1")
        assert seen["restored"] is False
        assert seen["source"] == f"epoch {known.epoch} of gateway gw-1"
        assert {model["name"]: model["version"] for model in seen["models"]} == {
            name: model.version for name, model in known.models.items()
        }
        assert api.service.view().epoch is None, "nothing was written"
        await api.ask("POST", "/v1/epoch/restore", {"digest": "0" * 64}, 409)
        await api.ask("POST", "/v1/epoch/restore", {"digest": seen["digest"], "without": ["gw-9"]}, 404)
        done = await api.ask("POST", "/v1/epoch/restore", {"digest": seen["digest"]})
        assert (done["restored"], done["epoch"]) == (True, seen["epoch"])
        restored = api.service.view().epoch
        assert restored is not None
        assert restored.models == known.models
        await api.ask("POST", "/v1/rollouts", {"changes": {"detector": "2"}}, 201)

    with_api(tmp_path, scenario)


def test_many_that_ask_at_once_are_all_served_in_some_order(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await ready(api)
        answers = await asyncio.gather(
            *(api.client.post("/v1/rollouts", json={"changes": {"tracker": str(number)}}) for number in range(2, 7)),
            api.client.post("/v1/rollouts", json={"changes": {"detector": "2"}}),
        )
        statuses = [answer.status_code for answer in answers]
        assert sorted(statuses) == [201, 201, 409, 409, 409, 409]
        assert statuses[-1] == 201
        identities = {answer.json()["identity"] for answer in answers if answer.status_code == 201}
        assert identities == {"r1", "r2"}

    with_api(tmp_path, scenario)


def test_while_the_store_is_away_reads_answer_and_writes_say_why_not(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await ready(api)
        await api.store.close()
        for _ in range(3000):
            if not api.mirror.connected:
                break
            await asyncio.sleep(0.01)
        health = await api.get("/v1/health")
        assert (health["live"], health["store"]["connected"]) == (True, False)
        assert health["store"]["error"]
        status = await api.get("/v1/status")
        assert (status["epoch"], status["store"]["connected"]) == (7, False)
        refused = await api.ask("POST", "/v1/drains/cpu-1", status=503)
        assert refused["code"] == "store_unavailable"

    with_api(tmp_path, scenario)


def test_a_rollout_is_told_whenever_it_changes_until_it_is_over(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await api.write(KEYS.rollout("r1"), RolloutRecord("r1", {"tracker": Change("2")}))
        watching = asyncio.ensure_future(api.client.get("/v1/rollouts/r1/watch"))
        await asyncio.sleep(0)
        for state in (PREPARING, ABORTED):
            await api.write(KEYS.rollout("r1"), RolloutRecord("r1", {"tracker": Change("2")}, state, reason="no"))
            await api.write(KEYS.leader, state.encode())
        response = await watching
        assert response.headers["content-type"].startswith("text/event-stream")
        reported = [msgspec.json.decode(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
        # The stream may begin late, but it is in order and ends with the rollout.
        assert [each["state"] for each in reported] == ["pending", PREPARING, ABORTED][-len(reported) :]
        assert (await api.client.get("/v1/rollouts/r9/watch")).status_code == 404

    with_api(tmp_path, scenario)


def test_the_last_aborted_rollout_is_in_the_status_until_its_models_change(tmp_path: Path) -> None:
    def rollout(number: int, state: str, model: str) -> RolloutRecord:
        return RolloutRecord(f"r{number}", {model: Change("2", "1")}, state, reason="worse")

    async def scenario(api: Api) -> None:
        for number, (state, model) in enumerate(((ABORTED, "detector"), (DONE, "tracker"), (PREPARING, "tracker")), 9):
            await api.write(KEYS.rollout(f"r{number}"), rollout(number, state, model))
        assert (await api.get("/v1/status"))["aborted"]["identity"] == "r9"
        await api.write(KEYS.rollout("r12"), rollout(12, DONE, "detector"))
        assert (await api.get("/v1/status"))["aborted"] is None
        await api.write(KEYS.rollout("r13"), rollout(13, ABORTED, "tracker"))
        assert (await api.get("/v1/status"))["aborted"]["identity"] == "r13"

    with_api(tmp_path, scenario)


def test_a_version_that_is_in_no_repository_is_refused_before_a_rollout_starts(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        await ready(api)
        refused = await api.ask("POST", "/v1/rollouts", {"changes": {"detector": "9", "tracker": "2"}}, 400)
        expected = "changes.detector: expected a version that is in its repository (1, 2, 3, 4, 5, 6), given '9'"
        assert refused["error"] == expected
        assert (await api.get("/v1/rollouts"))["rollouts"] == []
        # What is wrong with a name or a number is said as before.
        assert (
            "did you mean 'detector'"
            in (await api.ask("POST", "/v1/rollouts", {"changes": {"detecto": "9"}}, 404))["error"]
        )
        assert (
            "a positive integer"
            in (await api.ask("POST", "/v1/rollouts", {"changes": {"detector": "x"}}, 400))["error"]
        )
        # The workers report errors of a repository that the controller cannot read.
        (api.directory / "models").rename(api.directory / "elsewhere")
        await api.ask("POST", "/v1/rollouts", {"changes": {"detector": "9"}}, 201)

    with_api(tmp_path, scenario)
