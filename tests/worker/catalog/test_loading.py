"""From a configuration to warm instances, and that a failure leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from isochrone.clock import MILLISECOND
from isochrone.errors import ConfigError, ModelFailed
from isochrone.models.repository.repository import Repository
from isochrone.worker.catalog import loading
from isochrone.worker.catalog.load_settings import LoadSettings
from isochrone.worker.catalog.loading import Prepared, prepare, prepare_with_retries
from sample_models import write_config, write_python

BASIC = """
    backend: "python"
    max_batch_size: 4
    input { name: "X" data_type: TYPE_FP32 dims: [1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [1] }
"""
MODEL = """
    import pathlib

    class Model:
        def load(self, context):
            self.notes = pathlib.Path(context.directory).parent / "notes"
            if context.instance >= int(context.parameters.get("good_instances", "9")):
                raise RuntimeError("one too many")
            self.note("load")

        def note(self, word):
            with open(self.notes, "a") as file:
                file.write(word + " ")

        def infer(self, inputs):
            return {"Y": inputs["X"]}

        def close(self):
            self.note("close")
            raise RuntimeError("close raises too")
"""


def parameter(key: str, value: str) -> str:
    return f'\nparameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def prepared(tmp_path: Path, text: str = "") -> Prepared:
    write_config(tmp_path / "m", BASIC + text)
    write_python(tmp_path / "m", MODEL)
    return prepare(Repository([tmp_path]).read("m"), 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [("isolation", "none"), ("cpus", "x"), ("deadline_ms", "soon"), ("execution_timeout_ms", "soon")],
)
def test_errors_name_the_whole_path_of_the_configuration(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(tmp_path, parameter(key, value))
    assert (caught.value.where, caught.value.key) == (str(tmp_path / "m" / "config.pbtxt"), f'parameters["{key}"]')


def test_errors_name_the_configuration_of_a_load_request(tmp_path: Path) -> None:
    write_python(tmp_path / "m", MODEL)
    config = """{
        "backend": "python", "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}],
        "parameters": {"isolation": {"string_value": "none"}}
    }"""
    with pytest.raises(ConfigError, match="load parameter 'config': parameters"):
        prepare(Repository([tmp_path]).read("m", config), 1)


def notes(tmp_path: Path) -> list[str]:
    return (tmp_path / "m" / "notes").read_text().split()


def test_every_instance_is_loaded_and_measured(tmp_path: Path) -> None:
    made = prepared(tmp_path, "instance_group { count: 3 }")
    assert len(made.executables) == 3
    assert notes(tmp_path) == ["load"] * 3
    assert all(made.curve.mean(rows) > 0 for rows in (1, 2, 4))
    made.discard()


def test_discard_closes_all_even_if_close_raises(tmp_path: Path) -> None:
    prepared(tmp_path, "instance_group { count: 2 }").discard()
    assert notes(tmp_path) == ["load", "load", "close", "close"]


def test_a_load_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match="one too many"):
        prepared(tmp_path, "instance_group { count: 3 }" + parameter("good_instances", "2"))
    assert notes(tmp_path) == ["load", "load", "close", "close"]


def test_an_instance_whose_tensors_cannot_be_reshaped_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ModelFailed("no such shape")

    monkeypatch.setattr(loading, "reshaped", fail)
    with pytest.raises(ModelFailed, match="no such shape"):
        prepared(tmp_path, "instance_group { count: 2 }")
    assert notes(tmp_path) == ["load", "close"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (parameter("deadline_ms", "soon"), "deadline_ms\"]: expected milliseconds, as in 50 or 2.5, given 'soon'"),
        (parameter("deadline_ms", "-1"), "deadline_ms"),
        (parameter("execution_timeout_ms", "soon"), "execution_timeout_ms\"]: expected a whole number, given 'soon'"),
        (parameter("cpus", "a,b"), 'cpus"]: expected CPUs as in "0,1;2,3"'),
        (parameter("cpus", "100000"), r'cpus"]: expected of the CPUs \[.*given \'100000\''),
        ("dynamic_batching { }" + parameter("priority_ageing_ms", "-1"), "priority_ageing_ms"),
    ],
)
def test_wrong_parameters_are_told_before_anything_is_loaded(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, text)
    assert not (tmp_path / "m" / "notes").exists()


def test_instances_take_turns_on_the_cpus_named(tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    first, last = usable[0], usable[-1]
    made = prepared(tmp_path, "instance_group { count: 3 }" + parameter("cpus", f"{first};{last}"))
    assert [context.cpus for context in made.contexts] == [(first,), (last,), (first,)]
    made.discard()


def test_the_execution_timeout_is_the_runners_only_where_the_backend_has_none(tmp_path: Path) -> None:
    threaded = prepared(tmp_path / "a", parameter("execution_timeout_ms", "250"))
    assert threaded.execution_timeout_ns == 250 * MILLISECOND
    threaded.discard()
    isolated = prepared(tmp_path / "b", parameter("execution_timeout_ms", "250") + parameter("isolation", "process"))
    assert isolated.execution_timeout_ns == 0
    isolated.discard()
    # A backend that does not isolate has no process to kill.
    settings = parameter("execution_timeout_ms", "250") + parameter("isolation", "process")
    write_config(tmp_path / "c" / "m", BASIC.replace('"python"', '"identity"') + settings)
    (tmp_path / "c" / "m" / "1").mkdir()
    plain = prepare(Repository([tmp_path / "c"]).read("m"), 1)
    assert plain.execution_timeout_ns == 250 * MILLISECOND
    plain.discard()


def test_an_ensemble_has_nothing_to_load(tmp_path: Path) -> None:
    text = """
        platform: "ensemble"
        input { name: "X" data_type: TYPE_FP32 dims: [1] }
        output { name: "Y" data_type: TYPE_FP32 dims: [1] }
        ensemble_scheduling { step { model_name: "m" model_version: -1
          input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }
    """
    write_config(tmp_path / "e", text)
    (tmp_path / "e" / "1").mkdir()
    made = prepare(Repository([tmp_path]).read("e"), 1)
    assert made.executables == ()
    assert made.digest.startswith("sha256:") or len(made.digest) == 64


def test_the_digest_tells_versions_apart(tmp_path: Path) -> None:
    first = prepared(tmp_path)
    write_python(tmp_path / "m", MODEL.replace("close raises too", "close still raises"))
    second = prepare(Repository([tmp_path]).read("m"), 1)
    assert first.digest != second.digest
    made: Any
    for made in (first, second):
        made.discard()


def test_a_load_that_failed_is_tried_again(tmp_path: Path) -> None:
    source = """
        import pathlib

        class Model:
            def load(self, context):
                file = pathlib.Path(context.directory).parent / "attempts"
                attempts = int(file.read_text()) + 1 if file.exists() else 1
                file.write_text(str(attempts))
                if attempts < 3:
                    raise RuntimeError("not yet")

            def infer(self, inputs):
                return {"Y": inputs["X"]}
    """
    write_config(tmp_path / "m", BASIC)
    write_python(tmp_path / "m", source)
    description = Repository([tmp_path]).read("m")
    with pytest.raises(ModelFailed, match="not yet"):
        prepare_with_retries(description, 1, None, LoadSettings(retries=1))
    (tmp_path / "m" / "attempts").unlink()
    prepare_with_retries(description, 1, None, LoadSettings(retries=2)).discard()
    assert (tmp_path / "m" / "attempts").read_text() == "3"


def test_host_policies_say_where_instances_run_unless_the_model_does(tmp_path: Path) -> None:
    one = min(os.sched_getaffinity(0))
    settings = LoadSettings(host_policies={"cpu": (one,), "other": (one, one)})
    groups = 'instance_group [{ count: 2 }, { host_policy: "other" }, { host_policy: "unknown" }]'

    def cpus(text: str) -> list[tuple[int, ...]]:
        write_config(tmp_path / "m", BASIC + text)
        write_python(tmp_path / "m", MODEL)
        made = prepare(Repository([tmp_path]).read("m"), 1, None, settings)
        made.discard()
        return [context.cpus for context in made.contexts]

    assert cpus(groups) == [(one,), (one,), (one, one), ()]
    assert cpus("") == [(one,)]
    assert cpus(parameter("cpus", str(one)) + groups) == [(one,)] * 4


def test_backend_parameters_are_defaults_of_models(tmp_path: Path) -> None:
    write_config(tmp_path / "m", BASIC + parameter("a", "own"))
    write_python(tmp_path / "m", MODEL)
    settings = LoadSettings(parameters={"python": {"a": "default", "b": "default"}, "onnx": {"c": "default"}})
    made = prepare(Repository([tmp_path]).read("m"), 1, None, settings)
    made.discard()
    assert made.contexts[0].parameters == {"a": "own", "b": "default"}


def test_what_a_group_asks_for_without_its_flag_gets_a_warning(tmp_path: Path) -> None:
    groups = 'instance_group { count: 1 host_policy: "p" rate_limiter { resources { name: "R" count: 1 } } }'
    write_config(tmp_path / "m", BASIC + groups)
    write_python(tmp_path / "m", MODEL)
    description = Repository([tmp_path]).read("m")

    def logged(settings: LoadSettings) -> list[str]:
        with capture_logs() as lines:
            prepare(description, 1, None, settings).discard()
        return [line["event"].partition(" has no effect")[0] for line in lines if "has no effect" in line["event"]]

    assert logged(LoadSettings()) == ["instance_group.rate_limiter", "instance_group.host_policy"]
    one = min(os.sched_getaffinity(0))
    assert logged(LoadSettings(rate_limits={}, host_policies={"p": (one,)})) == []
