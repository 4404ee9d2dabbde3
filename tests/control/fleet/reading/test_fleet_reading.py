"""Reading fleet.yaml: a valid file survives JSON; errors name the file, line, key and value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fleets import DIRECTORY, TEXT, changed, parse
from hypothesis import given
from hypothesis import strategies as st
from mistakes import MISTAKES

from isochrone.control.fleet.reading.file import read_file
from isochrone.control.fleet.reading.parsing import fleet_of, load_fleet, parse_fleet, with_workers
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.errors import ConfigError
from isochrone.settings.problems import SettingsError


def errors_of(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        parse(text)
    assert isinstance(caught.value, ConfigError)
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.errors]
    return str(caught.value).splitlines()


# What is right.


def test_a_name_alone_is_a_fleet() -> None:
    fleet = parse("name: small")
    assert list(fleet.gateways) == ["gw"]
    assert fleet.pools["cpu"].workers == 1
    assert fleet.repository == ("models",)
    assert fleet.store.url == "sqlite:state/fleet.db"
    assert fleet.store.lease_seconds == 5
    assert fleet.models == {}


def test_models_are_laid_over_the_defaults() -> None:
    fleet = parse(TEXT)
    assert fleet.models["preprocess"].slo.deadline_ms == 100
    assert fleet.models["detector"].traffic == {"retries": {"ratio": 0.2}, "quota": {"concurrency": 8}}
    assert fleet.models["detector"].memory == 200 << 20
    assert fleet.models["pipeline"].rollout.canary is not None
    assert fleet.models["pipeline"].rollout.canary.rule().weights == (0.05, 0.25)
    assert fleet.models["pipeline"].changes_with == ("detector",)
    assert fleet.of("another").traffic == {"retries": {"ratio": 0.2}}
    assert fleet.pools_of("detector") == ("cpu",)
    assert fleet.pools_of("another") == ("cpu", "gpu")


def test_options_belong_to_the_policy_they_were_written_for() -> None:
    fleet = parse(
        "name: a\ndefaults: {policy: prequal, policy_options: {quantile: 0.5}}\n"
        "models: {same: {slo: {priority: 1}}, other: {policy: random}}"
    )
    assert fleet.models["same"].policy_options == {"quantile": 0.5}
    assert fleet.models["other"].policy_options == {}


def test_a_model_can_drop_what_the_defaults_have() -> None:
    fleet = parse(
        "name: a\ndefaults: {rollout: {canary: true, compare: {samples: 9}}}\nmodels: {m: {rollout: {canary: false}}}"
    )
    assert fleet.models["m"].rollout.canary is None
    assert fleet.models["m"].rollout.compare is not None
    assert fleet.models["m"].rollout.compare.rule().samples == 9
    assert fleet.of("unnamed").rollout.canary is not None


def test_a_fleet_survives_json() -> None:
    fleet = parse(TEXT)
    stored = json.loads(json.dumps(fleet.model_dump(mode="json")))
    assert Fleet.model_validate(stored) == fleet == fleet_of(stored)
    assert fleet_of(stored).model_dump(mode="json") == stored
    assert stored["models"]["pipeline"]["with"] == ["detector"]


@given(st.integers(1, 8), st.integers(0, 2**40), st.floats(0, 1e6), st.sampled_from(["fast", "strict"]), st.booleans())
def test_any_fleet_survives_json(workers: int, memory: int, deadline: float, cutover: str, canary: bool) -> None:
    spec = {
        "name": "any",
        "pools": {"cpu": {"workers": workers, "max": 8, "memory": memory}},
        "defaults": {"slo": {"deadline_ms": deadline}, "rollout": {"canary": canary}},
        "models": {"m": {"rollout": {"cutover": cutover}}, "n": None},
    }
    fleet = fleet_of(spec)
    assert Fleet.model_validate(json.loads(json.dumps(fleet.model_dump(mode="json")))) == fleet


def test_anchors_and_merges_are_understood() -> None:
    text = "name: a\nmodels:\n  one: &base {version: 2, slo: {deadline_ms: 5}}\n  two: {<<: *base, version: 3}"
    fleet = parse(text)
    assert (fleet.models["two"].version, fleet.models["two"].slo.deadline_ms) == ("3", 5)


def test_dates_stay_text() -> None:
    assert parse("name: a\npools: {cpu: {region: 2024-05-01}}").pools["cpu"].region == "2024-05-01"


def test_workers_can_be_changed_within_their_bounds() -> None:
    fleet = parse(TEXT)
    assert with_workers(fleet, "cpu", 5).pools["cpu"].workers == 5
    assert with_workers(with_workers(fleet, "cpu", 5), "cpu", 3) == fleet
    with pytest.raises(ConfigError, match=r"fleet demo: pools.cpu.workers: expected at most max, which is 8, given 9"):
        with_workers(fleet, "cpu", 9)
    with pytest.raises(ConfigError, match=r"pools.disk: expected a pool of the fleet \(cpu, gpu\), given 'disk'"):
        with_workers(fleet, "disk", 1)


# What is wrong, in one place.


@pytest.mark.parametrize(("before", "after", "message"), MISTAKES)
def test_a_mistake_is_told(before: str, after: str, message: str) -> None:
    assert f"fleet.yaml:{message}" in errors_of(changed((before, after)))


def test_all_mistakes_are_told_at_once() -> None:
    assert errors_of(changed(("name: demo", "name: Demo"), ("workers: 3", "workers: x"), ("strict", "slow"))) == [
        "fleet.yaml:1: name: expected a name of a-z, 0-9 and -, at most 63 characters, that starts and ends with a"
        " letter or digit, given 'Demo'",
        "fleet.yaml:9: pools.cpu.workers: expected an integer, given 'x'",
        "fleet.yaml:28: models.pipeline.rollout.cutover: expected fast or strict, given 'slow'",
    ]


def test_a_mistake_in_the_defaults_is_told_once() -> None:
    lines = errors_of(changed(("traffic: {retries: {ratio: 0.2}}", "pools: [tpu]")))
    assert [line.partition(":")[2].partition(": expected")[0] for line in lines] == ["16: defaults.pools[0]"]


def test_mistakes_in_the_rules_of_several_models_are_all_told() -> None:
    lines = errors_of("name: a\nmodels:\n  b: {policy: x}\n  c.d: {traffic: {hedge: {ratio: 9}}}")
    assert [line.partition(": expected")[0] for line in lines] == [
        "fleet.yaml:3: models.b.policy",
        "fleet.yaml:4: models.c.d.traffic.hedge.ratio",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "fleet.yaml: file: expected a mapping with name, pools, models ..., given nothing"),
        ("- a", "fleet.yaml: file: expected a mapping with name, pools, models ..., given ['a']"),
        ("name: [", "fleet.yaml:1: not valid YAML: "),
        ("name: a\n\tb: c", "fleet.yaml:2: not valid YAML: "),
        (
            "name: a\ndefaults: &a {traffic: *a}",
            "fleet.yaml:2: not valid YAML: an anchor that holds itself",
        ),
        ("name: !!python/object:os.system a", "fleet.yaml:1: not valid YAML: "),
        ("name: a\x00", "fleet.yaml: not valid YAML: "),
        ("a: " + "[" * 1000 + "]" * 1000, "fleet.yaml: not valid YAML: it is nested too deeply"),
    ],
)
def test_what_is_no_fleet_at_all_is_told(text: str, message: str) -> None:
    (line, *_) = errors_of(text)
    assert line.startswith(message)


@given(st.text(max_size=60))
def test_no_text_brings_it_down(text: str) -> None:
    try:
        parse(text)
    except SettingsError:
        pass


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml: no such file; name a fleet.yaml \(isochrone init"):
        load_fleet(tmp_path / "none.yaml")
    with pytest.raises(SettingsError, match=r": is a directory; name a fleet.yaml$"):
        load_fleet(tmp_path)
    (tmp_path / "fleet.yaml").write_bytes(b"name: \xff")
    with pytest.raises(SettingsError, match="expected UTF-8 text, given bytes that are not"):
        load_fleet(tmp_path / "fleet.yaml")
    (tmp_path / "fleet.yaml").write_text(TEXT)
    assert load_fleet(tmp_path / "fleet.yaml") == parse_fleet(TEXT, "x", DIRECTORY)


def test_a_wrong_record_is_told_without_a_line() -> None:
    with pytest.raises(SettingsError) as caught:
        fleet_of({"name": "a", "pools": {"cpu": {"workers": "x"}}}, "store")
    assert str(caught.value) == "store: pools.cpu.workers: expected an integer, given 'x'"


# All at once.


def test_mistakes_of_every_kind_are_told_in_one_go(tmp_path: Path) -> None:
    text = """\
name: demo
repository: ./modles
control: {listen: 8003}
gateways:
  gw: {count: 0}
pools:
  cpu: {workers: 2, memroy: 1GiB}
  gpu: {workers: 3, max: 2}
models:
  detector: {version: 1, pools: [cppu], traffic: {quota: {concurency: 1}, retries: {ration: 1}}}
  tracker: {version: 1, rollout: {canary: {steps: [50%, 5%]}}}
security: {tls: {cert: a.pem, key: b.pem, ca: d.pem}, signatures: {trust: [c.pub]}, encryption: {keys: [file:d]}}
"""
    with pytest.raises(SettingsError) as caught:
        read_file(text, "fleet.yaml", tmp_path)
    keys = {str(problem).partition(": expected")[0] for problem in caught.value.errors}
    assert keys == {
        "fleet.yaml:2: repository",
        "fleet.yaml:3: control.listen",
        "fleet.yaml:5: gateways.gw.count",
        "fleet.yaml:7: pools.cpu.memroy",
        "fleet.yaml:8: pools.gpu.workers",
        "fleet.yaml:10: models.detector.pools[0]",
        "fleet.yaml:10: models.detector.traffic.quota.concurency",
        "fleet.yaml:10: models.detector.traffic.retries.ration",
        "fleet.yaml:11: models.tracker.rollout.canary.steps",
        "fleet.yaml:12: security.tls.cert",
        "fleet.yaml:12: security.tls.key",
        "fleet.yaml:12: security.tls.ca",
        "fleet.yaml:12: security.signatures.trust[0]",
        "fleet.yaml:12: security.encryption.keys[0]",
    }


@pytest.mark.parametrize("encryption", ["{keys: [hunter2]}", "{keys: ['file:']}", "{keys: ['vault:hunter2']}"])
def test_a_model_key_in_place_of_its_source_is_not_shown(encryption: str) -> None:
    (error,) = errors_of(f"name: a\nsecurity: {{encryption: {encryption}}}")
    assert "file:PATH, env:NAME or command:PROGRAM ARGUMENTS" in str(error)
    assert "hunter2" not in str(error)


def test_required_encryption_needs_keys() -> None:
    (error,) = errors_of("name: a\nsecurity: {encryption: {required: true}}")
    assert "keys beside required" in str(error)


def test_what_was_left_out_makes_no_mistakes_of_its_own() -> None:
    # workers would be 1 then, below min; the pool would not be known to the model; the ports would clash.
    assert errors_of("name: a\npools: {cpu: {workres: 3, min: 2}}") == [
        "fleet.yaml:2: pools.cpu.workres: expected a known key (did you mean 'workers'?), given an unknown key"
    ]
    assert len(errors_of("name: a\npools: {gpu: 7, cpu: {}}\nmodels: {m: {pools: [gpu]}}")) == 1
    assert len(errors_of("name: a\npools: 7\nmodels: {m: {pools: [gpu]}}")) == 1
    assert len(errors_of("name: a\ncontrol: {listen: 8}\ngateways: {gw: {listen: 'localhost:8003'}}")) == 1


def test_a_wrong_repository_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read_file("name: a\nrepository: ~nosuchuser/models", "fleet.yaml", tmp_path)
    assert [problem.key for problem in caught.value.errors] == ["repository[0]"]


def test_aliases_that_repeat_each_other_are_refused_before_they_are_made() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 12))
    (line,) = errors_of(bomb + "name: *a11\n")
    assert "more than 500000 values, with all that its aliases repeat" in line
    merged = "".join(f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 12))
    (line,) = errors_of("a0: &a0 {x: 1, y: 2}\n" + merged)
    assert "more than 500000 values" in line


def test_aliases_in_moderation_are_fine() -> None:
    text = "name: a\nmodels:\n  first: &common {slo: {deadline_ms: 5}}\n  second: *common\n  third: {<<: *common}\n"
    assert {model.slo.deadline_ms for model in parse(text).models.values()} == {5.0}
