"""Parts of a profile: shapes, changed configurations, operators of a trace, other load, plots, timed runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2

from isochrone.errors import FlagError
from isochrone.models.configuration.pbtxt import parse_text
from isochrone.optimize.profiling.changed_config import with_instances, with_preferred_batch
from isochrone.optimize.profiling.results.plots import line_plot
from isochrone.optimize.profiling.running.inputs import parse_shapes
from isochrone.optimize.profiling.running.memory import available_bytes
from isochrone.optimize.profiling.running.operators import kernel_times, ranked
from isochrone.optimize.profiling.running.other_load import OtherLoad, busy_seconds, session_seconds
from isochrone.optimize.profiling.running.timed_runs import time_runs
from isochrone.worker.backends.interface import Executable


class Sleeping(Executable):
    """Takes a millisecond; fails at the given run."""

    def __init__(self, fails_at: int = 0) -> None:
        self.runs = 0
        self._fails_at = fails_at

    def execute(self, inputs: Any, outputs: tuple[str, ...] | None) -> Any:
        self.runs += 1
        if self.runs == self._fails_at:
            raise ValueError("no more")
        time.sleep(0.001)
        return inputs

    def close(self) -> None:
        pass


def config(text: str) -> model_config_pb2.ModelConfig:
    return parse_text(text, "config.pbtxt")[0]


def test_shapes() -> None:
    assert parse_shapes(["x:1,128", "a:b:3"]) == {"x": [1, 128], "a:b": [3]}
    for wrong in ("x", "x:", ":3", "x:0", "x:-1", "x:a"):
        with pytest.raises(FlagError, match="NAME:SIZE,SIZE"):
            parse_shapes([wrong])
    with pytest.raises(FlagError, match="once"):
        parse_shapes(["x:1", "x:2"])


def test_one_group_keeps_the_first_ones_settings() -> None:
    given = config(
        'backend: "openvino" instance_group [ { count: 3 kind: KIND_CPU host_policy: "far" }, { count: 2 } ] '
        'parameters { key: "inference_num_threads" value { string_value: "9" } }'
    )
    changed = with_instances(given, 4, 2)
    assert [(group.count, group.host_policy) for group in changed.instance_group] == [(2, "far")]
    assert {key: value.string_value for key, value in changed.parameters.items()} == {"INFERENCE_NUM_THREADS": "4"}
    assert len(given.instance_group) == 2


def test_a_backend_without_threads_gets_no_parameter() -> None:
    assert not with_instances(config('backend: "python"'), 1, 2).parameters


def test_a_preferred_batch_of_one_adds_no_batching() -> None:
    assert not with_preferred_batch(config(""), 1).HasField("dynamic_batching")
    batching = "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 9 }"
    changed = with_preferred_batch(config(batching), 1).dynamic_batching
    assert (list(changed.preferred_batch_size), changed.max_queue_delay_microseconds) == ([], 9)
    assert list(with_preferred_batch(config(batching), 16).dynamic_batching.preferred_batch_size) == [16]


def test_operators_of_a_trace_are_ranked_by_time() -> None:
    events = [
        {"cat": "Node", "name": "a_kernel_time", "dur": 30, "args": {"op_name": "Gemm"}},
        {"cat": "Node", "name": "b_kernel_time", "dur": 10, "args": {"op_name": "Relu"}},
        {"cat": "Node", "name": "c_kernel_time", "dur": 60, "args": {"op_name": "Gemm"}},
        {"cat": "Node", "name": "c_fence_before", "dur": 900, "args": {"op_name": "Gemm"}},
        {"cat": "Session", "name": "model_run", "dur": 999},
    ]
    found = ranked(kernel_times(events), runs=2)
    assert [(each.name, each.share, each.microseconds_per_run, each.calls_per_run) for each in found] == [
        ("Gemm", 0.9, 45.0, 1.0),
        ("Relu", 0.1, 5.0, 0.5),
    ]
    assert ranked({}, 1) == []


def test_load_of_others_is_what_is_not_of_the_own_session(tmp_path: Path) -> None:
    assert busy_seconds("cpu  100 20 30 5000 7 1 2 3 50 0\ncpu0 …") == 1.56
    for pid, session, ticks in ((7, 7, 40), (8, 7, 10), (9, 9, 1000)):
        (tmp_path / str(pid)).mkdir()
        fields = " ".join(["S", "1", "1", str(session), *"0" * 7, str(ticks), "5", *"0" * 20])
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (name) 1 2) {fields}")
    assert session_seconds(7, tmp_path) == 0.6
    assert OtherLoad(10.0, 4.0).since(OtherLoad(6.0, 3.0)) == 3.0
    assert OtherLoad(10.0, 4.0).since(OtherLoad(10.0, 3.0)) == 0.0


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 4 kB\n")
    assert available_bytes(tmp_path) == 4096
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("1000\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("3000\n")
    assert available_bytes(tmp_path) == 2000
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert available_bytes(tmp_path) == 4096


def test_all_instances_run_at_the_same_time() -> None:
    instances = [Sleeping(), Sleeping()]
    times = time_runs(instances, [(), ()], lambda: {"x": np.zeros(1)}, 4, least_seconds=0.05, seconds=0.2)
    assert all(each.runs > 2 for each in instances)
    assert times.runs == sum(each.runs - 1 for each in instances)  # without the first run of each
    assert times.run_ns >= 1e6
    assert times.rows_per_second <= 2 * 4 / 0.001


@pytest.mark.parametrize("fails_at", [1, 5])
def test_an_error_of_one_instance_ends_all(fails_at: int) -> None:
    with pytest.raises(ValueError, match="no more"):
        time_runs([Sleeping(), Sleeping(fails_at)], [(), ()], dict, 1, least_seconds=60, seconds=60)


def test_a_plot_is_well_formed_whatever_its_names_are() -> None:
    text = line_plot("<a> & b", "x", 'y"', {"one": [(1, 5.0), (8, 0.0)], "<two>": [(1, 1.0)]}, ("SLO", 7.0))
    root = ElementTree.fromstring(text)
    assert [each.tag for each in root].count("polyline") == 2
    single = ElementTree.fromstring(line_plot("t", "x", "y", {"one": [(1, 0.0)]}))
    assert [each.tag for each in single].count("circle") == 1
