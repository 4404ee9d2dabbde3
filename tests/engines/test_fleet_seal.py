"""The seal that a supervisor's store has, by the applied file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_records import ALL, CONTEXT, FLEET, KEYS, Records, file_of
from isochrone.control.fleet.derived.engine_processes import POD_DIRECTORY, processes_on
from isochrone.control.fleet.planning.ineffective import ineffective
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.requests.decisions import Conflict
from isochrone.control.requests.fleet import apply_fleet
from isochrone.control.state.records import KUBERNETES, LOCAL
from isochrone.engines.fleet_seal import fleet_seal, next_seal
from isochrone.errors import FlagError

OLD, NEW, OTHER = "o" * 32, "n" * 32, "x" * 32


def fleet(path: Path, security: str) -> Fleet:
    return parse_fleet(f"name: plant\nsecurity: {security}\n", "fleet.yaml", path)


def key_file(path: Path, *lines: str) -> str:
    name = f"{'-'.join(line[0] for line in lines)}.key"
    (path / name).write_text("\n".join(lines))
    return f"{{key: {name}}}"


def test_it_is_by_the_applied_files_key(tmp_path: Path) -> None:
    found = fleet(tmp_path, key_file(tmp_path, OLD))
    assert fleet_seal(found, tmp_path).has_key
    assert not fleet_seal(found, tmp_path).accepts_unsealed
    assert not fleet_seal(fleet(tmp_path, "{}"), tmp_path).has_key
    assert fleet_seal(fleet(tmp_path, "{key: o.key, key_required: false}"), tmp_path).accepts_unsealed
    (tmp_path / "o.key").unlink()
    with pytest.raises(FlagError, match=r"security\.key.*No such file"):
        fleet_seal(found, tmp_path)


@pytest.mark.parametrize(
    ("present", "following", "works"),
    [
        ((OLD,), (OLD, NEW), True),
        ((OLD, NEW), (NEW, OLD), True),
        ((NEW, OLD), (NEW,), True),
        ((OLD,), (NEW,), False),
        ((OLD,), (NEW, OLD), False),
        ((OLD, NEW), (NEW,), False),
        ((OLD,), (OTHER, NEW), False),
    ],
)
def test_a_key_is_exchanged_only_in_steps_that_refuse_nothing(
    tmp_path: Path, present: tuple[str, ...], following: tuple[str, ...], works: bool
) -> None:
    before = fleet_seal(fleet(tmp_path, key_file(tmp_path, *present)), tmp_path)
    after = fleet(tmp_path, key_file(tmp_path, *following))
    if works:
        value = next_seal(before, after, tmp_path).seal("/k", b"v")
        assert before.open("/k", value)[0] == b"v"
        return
    with pytest.raises(FlagError, match="whose first line is accepted already") as caught:
        next_seal(before, after, tmp_path)
    assert not any(key in str(caught.value) for key in (OLD, NEW, OTHER))


@pytest.mark.parametrize("engine", [LOCAL, KUBERNETES])
@pytest.mark.parametrize("required", [True, False])
def test_each_process_gets_the_flags(tmp_path: Path, required: bool, engine: str) -> None:
    (tmp_path / "o.key").write_text(OLD)
    text = f"{FLEET}\ngateways: {{gw: {{listen: '127.0.0.1:0'}}}}\nsecurity: {{key: o.key, key_required: {required}}}\n"
    found = parse_fleet(text.replace("True", "true").replace("False", "false"), "fleet.yaml", tmp_path)
    specs = processes_on(engine, found, tmp_path)
    assert {spec.role for spec in specs.values()} == {"controller", "gateway", "worker"}
    for spec in specs.values():
        at = spec.arguments.index("--fleet-key")
        assert spec.arguments[at + 1] == str((tmp_path if engine == LOCAL else POD_DIRECTORY) / "o.key")
        assert ("--accept-unsealed" in spec.arguments) is not required
    assert not [step for step in ineffective(found, engine) if step.name.startswith("security.key")]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("{}", "{key: o.key}", "no record of the fleet is sealed yet"),
        ("{key: o.key}", "{}", "would refuse the records of those that have none"),
        ("{key: o.key, key_required: false}", "{key: o.key}", "records are not sealed yet, such as /isochrone/plant/"),
        ("{}", "{key: o.key, key_required: false}", ""),
        ("{key: o.key}", "{key: o.key, key_required: false}", ""),
        ("{key: o.key, key_required: false}", "{}", ""),
    ],
)
def test_an_apply_that_would_refuse_records_of_the_fleet_is_rejected(
    tmp_path: Path, before: str, after: str, words: str
) -> None:
    (tmp_path / "o.key").write_text(OLD)
    records = Records(None, ALL)
    earlier = file_of(f"{FLEET}\nsecurity: {before}\n", str(tmp_path))
    records.apply(apply_fleet(records.view, earlier, CONTEXT))
    later = file_of(f"{FLEET}\nsecurity: {after}\n", str(tmp_path))
    if words:
        with pytest.raises(Conflict, match=words):
            apply_fleet(records.view, later, CONTEXT, agreed=True)
        return
    assert any(each.key == KEYS.fleet for each in apply_fleet(records.view, later, CONTEXT, agreed=True).operations)
