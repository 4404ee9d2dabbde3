"""The commands that are printed when a fleet is up: all of them work."""

from __future__ import annotations

from pathlib import Path

from isochrone.cli.fleet.changing.next_steps import last_fleet_of, next_steps
from isochrone.control.fleet.bundled.writing import write_bundled
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord, FleetRecord
from isochrone.control.state.view import View
from isochrone.store.base import Entry

KEYS = Keys("demo")
STAGES = ("preprocess", "detector")


def steps(
    directory: Path, version: str = "1", port: int = 8000, text: str = "", is_remembered: bool = True
) -> list[str]:
    text = text or write_bundled(directory).read_text()
    records = {
        KEYS.epoch: EpochRecord(
            1,
            {
                "detector": Assignment(version),
                "pipeline": Assignment(version, stages=STAGES),
                "preprocess": Assignment(version),
            },
        ),
        KEYS.gateway("gw"): GatewayRecord("gw", "0.0.0.0", port),
        KEYS.worker("cpu-1"): WorkerRecord("cpu-1", "127.0.0.1", 1, 2),
    }
    view = View(KEYS, {key: Entry(key, encode(record), 1) for key, record in records.items()})
    fleet = parse_fleet(text, "fleet.yaml", directory)
    record = FleetRecord(1, text, fleet.model_dump(mode="json"), str(directory))
    return next_steps(view, record, "logs", last_fleet_of(fleet, directory, directory) if is_remembered else None)


def commands(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if line.startswith("  isochrone ")]


def test_the_bundled_fleet_where_everything_is_as_usual(tmp_path: Path) -> None:
    lines = steps(tmp_path)
    assert "Fleet demo is up: 1 gateway, 1 worker, serving detector 1, pipeline 1, preprocess 1." in lines
    assert commands(lines) == [
        "isochrone infer pipeline",
        "isochrone rollout start pipeline=2 preprocess=2 detector=2",
        "isochrone rollout rollback pipeline",
        "isochrone status",
        "isochrone top",
    ]


def test_no_rollout_is_offered_where_there_is_no_newer_version(tmp_path: Path) -> None:
    assert not any("rollout" in command for command in commands(steps(tmp_path, version="2")))


def _unusual(directory: Path) -> str:
    text = write_bundled(directory).read_text()
    return text.replace("127.0.0.1:8003", "0.0.0.0:9003").replace(":8000", ":9100")


def test_unusual_addresses_are_found_by_plain_commands(tmp_path: Path) -> None:
    lines = steps(tmp_path, port=9100, text=_unusual(tmp_path))
    assert "Any Triton client can use it: http://127.0.0.1:9100 (HTTP and gRPC)." in lines
    assert not any("--url" in command or "--api" in command for command in commands(lines))
    assert {"isochrone infer pipeline", "isochrone status"} < set(commands(lines))


def test_a_gateways_picked_port_is_in_the_command(tmp_path: Path) -> None:
    text = write_bundled(tmp_path).read_text().replace(":8000", ":0")
    assert commands(steps(tmp_path, port=9100, text=text))[0] == "isochrone infer pipeline --url http://127.0.0.1:9100"


def test_unusual_addresses_are_in_the_commands_where_the_fleet_could_not_be_remembered(tmp_path: Path) -> None:
    found = commands(steps(tmp_path, port=9100, text=_unusual(tmp_path), is_remembered=False))
    assert found[0] == "isochrone infer pipeline --url http://127.0.0.1:9100"
    assert found[1].endswith(" detector=2 --api http://127.0.0.1:9003")
    assert "isochrone status --api http://127.0.0.1:9003" in found


def test_nothing_is_said_of_a_port_that_is_not_known(tmp_path: Path) -> None:
    text = write_bundled(tmp_path).read_text().replace("127.0.0.1:8003", "127.0.0.1:0")
    found = commands(steps(tmp_path, text=text))
    assert found[0] == "isochrone infer pipeline"
    assert all("HOST:PORT" in command for command in found[1:])
    assert len(found) == 2
