"""Plans with workers that are not there: what a worker rejects is left out, and what does not answer ends the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import onnx
import pytest

from isochrone.errors import InvalidArgument, Unavailable
from isochrone.optimize.partitioning.encodings import Encoding
from isochrone.optimize.partitioning.facts import Arrays
from isochrone.optimize.partitioning.link_measuring import measured_link
from isochrone.optimize.partitioning.model_file import free_rows, read_rows
from isochrone.optimize.partitioning.planning import Plan, Planner
from isochrone.optimize.partitioning.tiers import Rejected, TierWorker
from two_stage_net import late_input_net, list_net, residual_net, sequence_net, shape_net


class ScriptedWorker:
    """``fails``: called with the inputs of each model that is loaded."""

    def __init__(self, tier: str, fails: Callable[[list[str]], None] = lambda inputs: None) -> None:
        self.url = self.reached = f"http://{tier}.invalid:8000"
        self.certificates: Mapping[str, str] = {}
        self.configs: list[Mapping[str, Any]] = []
        self._fails = fails

    @contextmanager
    def loaded(self, config: Mapping[str, Any], model: bytes | None = None) -> Iterator[str]:
        self.configs.append(config)
        if model is not None:
            self._fails([value.name for value in onnx.load_from_string(model).graph.input])
        yield "measured"

    def compute_seconds(self, model: str, inputs: Arrays) -> float:
        return 0.001 + sum(array.nbytes for array in inputs.values()) / 1e8


def planned(
    model: Any, edge: ScriptedWorker, core: ScriptedWorker, *encodings: Encoding, with_zstd: bool = False
) -> tuple[Plan, list[str]]:
    lines: list[str] = []
    planner = Planner(model, read_rows(model, None), free_rows(model), lines.append)
    wanted = encodings or (Encoding.PLAIN,)
    return planner.plan(cast("TierWorker", edge), cast("TierWorker", core), wanted, 20, with_zstd), lines


def names(plan: Plan) -> list[str]:
    return [each.option.name for each in plan.options]


def test_what_a_worker_rejects_is_left_out_with_a_line() -> None:
    def fails(inputs: list[str]) -> None:
        if inputs == ["b1"] or inputs == ["image"]:
            raise Rejected("core: no")

    plan, lines = planned(residual_net(), ScriptedWorker("edge"), ScriptedWorker("core", fails))
    assert "edge" in names(plan)
    assert "b2 plain" in names(plan)
    assert not {"core", "b1 plain"} & set(names(plan))
    assert [line for line in lines if "left out" in line] == [
        "core is left out: core: no",
        "b1 plain is left out: core: no",
    ]


def test_a_model_above_the_workers_usual_limit_is_reported_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isochrone.optimize.partitioning.planning._USUAL_BODY", 1000)
    _, lines = planned(residual_net(), ScriptedWorker("edge"), ScriptedWorker("core"))
    assert lines[0].startswith("to load the whole model, both workers need --max-body-bytes ")


def test_a_worker_that_rejects_everything_leaves_no_plan() -> None:
    def fails(inputs: list[str]) -> None:
        if inputs != ["x"]:  # the probe of the link
            raise Rejected("no")

    with pytest.raises(InvalidArgument, match="reject the model and every stage"):
        planned(residual_net(), ScriptedWorker("edge", fails), ScriptedWorker("core", fails))


def test_a_worker_that_does_not_answer_ends_the_plan() -> None:
    def fails(inputs: list[str]) -> None:
        if inputs == ["b1"]:
            raise Unavailable("core: does not answer")

    with pytest.raises(Unavailable, match="does not answer"):
        planned(residual_net(), ScriptedWorker("edge"), ScriptedWorker("core", fails))


def test_no_stage_is_warmed_up_with_zeros() -> None:
    edge, core = ScriptedWorker("edge"), ScriptedWorker("core")
    planned(shape_net(2), edge, core)
    for config in (*edge.configs, *core.configs):
        if config["backend"] == "onnxruntime":
            assert config["parameters"]["auto_warmup"] == {"string_value": "false"}


def test_the_link_leads_to_the_core_worker_itself() -> None:
    edge, core = ScriptedWorker("edge"), ScriptedWorker("core")
    planned(residual_net(), edge, core)
    (remote,) = [config for config in edge.configs if config["backend"] == "remote"]
    assert remote["parameters"]["endpoints"] == {"string_value": core.url}


def test_the_core_may_be_reached_at_another_address() -> None:
    edge, core = ScriptedWorker("edge"), ScriptedWorker("core")
    core.reached = "http://by-the-link.invalid:8000"
    planned(residual_net(), edge, core)
    (remote,) = [config for config in edge.configs if config["backend"] == "remote"]
    assert remote["parameters"]["endpoints"] == {"string_value": core.reached}


class BusyWorker(ScriptedWorker):
    """``factor``: by the number of models that were loaded; times are so many times as long."""

    def __init__(self, tier: str, factor: Callable[[int], float]) -> None:
        super().__init__(tier)
        self._factor = factor

    def compute_seconds(self, model: str, inputs: Arrays) -> float:
        return super().compute_seconds(model, inputs) * self._factor(len(self.configs))


def test_options_that_are_close_are_measured_again_and_the_lower_times_count() -> None:
    """The edge loads the remote model, the whole model, the cuts; and a second time, when nothing else runs."""
    slow_whole = {2: 10.0}

    def core() -> BusyWorker:
        return BusyWorker("core", lambda loads: slow_whole.get(loads, 1.0))

    quiet = planned(residual_net(), BusyWorker("edge", lambda loads: slow_whole.get(loads, 1.0)), core())
    first_pass = len([each for each in quiet[0].options if each.option.name != "core"]) + 1
    edge = BusyWorker("edge", lambda loads: slow_whole.get(loads, 1.2 if loads <= first_pass else 1.0))
    plan, _ = planned(residual_net(), edge, core())
    assert len(edge.configs) > first_pass
    fastest = min(plan.options, key=lambda each: each.option.seconds(plan.link)).option
    (calm,) = [each.option for each in quiet[0].options if each.option.name == fastest.name]
    assert fastest.edge_seconds == calm.edge_seconds


def test_a_window_that_still_grows_is_no_sample() -> None:
    class GrowingWindow(ScriptedWorker):
        """Each exchange of a size takes half as long as the one before it, down to what the bandwidth allows."""

        def __init__(self) -> None:
            super().__init__("edge")
            self.sent: dict[int, int] = {}

        def compute_seconds(self, model: str, inputs: Arrays) -> float:
            size = sum(array.nbytes for array in inputs.values())
            number = self.sent[size] = self.sent.get(size, 0) + 1
            return 0.01 + max(size / 1e7, 0.5**number if size > 1000 else 0.0)

    edge, core = cast("TierWorker", GrowingWindow()), cast("TierWorker", ScriptedWorker("core"))
    link = measured_link(edge, core, lambda line: None, 1 << 18)
    assert link.seconds(1 << 18, 0) == pytest.approx(0.01 + (1 << 18) / 1e7, rel=0.1)


def test_a_slow_link_is_not_probed_with_large_tensors() -> None:
    sizes = []

    class SlowLink(ScriptedWorker):
        def compute_seconds(self, model: str, inputs: Arrays) -> float:
            sizes.append(sum(array.nbytes for array in inputs.values()))
            return 0.02 + sizes[-1] / 1e5

    edge, core = cast("TierWorker", SlowLink("edge")), cast("TierWorker", ScriptedWorker("core"))
    link = measured_link(edge, core, lambda line: None)
    assert max(sizes) * 1e-5 < 1
    assert link.seconds(10**6, 0) == pytest.approx(10.02, rel=0.05)


def test_tensors_without_rows_in_front_cross_only_in_models_of_fixed_rows() -> None:
    edge, core = ScriptedWorker("edge"), ScriptedWorker("core")
    late, _ = planned(late_input_net(), edge, core)
    assert names(late) == ["edge", "core", "a+late plain", "b+late plain", "c+late plain"]
    free, lines = planned(shape_net(), edge, core)
    assert names(free) == ["edge", "core", "a plain", "b plain"]
    assert lines[0] == "2 cuts are possible; measuring 2"
    fixed, _ = planned(shape_net(2), edge, core)
    assert {"a+shape plain", "a+size plain"} < set(names(fixed))


def test_a_sequence_inside_a_model_costs_its_cut_alone() -> None:
    plan, _ = planned(list_net(), ScriptedWorker("edge"), ScriptedWorker("core"))
    assert names(plan) == ["edge", "core", "a plain", "b plain"]


def test_a_fixed_number_of_rows_is_passed_whole() -> None:
    plan, _ = planned(residual_net(rows=4), ScriptedWorker("edge"), ScriptedWorker("core"))
    (core,) = [each.option for each in plan.options if each.option.name == "core"]
    assert core.sent_bytes == 4 * 3 * 16 * 16 * 4


def test_free_dimensions_stay_free() -> None:
    model = sequence_net()
    samples = {"x": np.ones((4, 5, 4), np.float32)}
    planner = Planner(model, samples, free_rows(model), lambda line: None)
    workers = [cast("TierWorker", ScriptedWorker(tier)) for tier in ("edge", "core")]
    plan = planner.plan(workers[0], workers[1], list(Encoding), 20)
    assert plan.facts["x"].dims == plan.facts["y"].dims == (None, None, 4)
    assert plan.facts["b"].rows_first
    # All positions of all rows are in front of "mixed": no batch can be made of it.
    assert "mixed" not in plan.facts
    assert {each.option.name.split()[0] for each in plan.options if each.stages} == {"a+x", "b", "c"}


def test_encodings_are_measured_only_where_they_change_something() -> None:
    model = shape_net(2)
    plan, _ = planned(model, ScriptedWorker("edge"), ScriptedWorker("core"), *Encoding)
    assert {"b plain", "b fp16", "b int8"} <= set(names(plan))
    indices, _ = planned(_index_net(), ScriptedWorker("edge"), ScriptedWorker("core"), *Encoding)
    assert [name for name in names(indices) if name.startswith("best ")] == ["best plain"]


def _index_net() -> Any:
    model = late_input_net()
    del model.graph.node[:], model.graph.input[1:]
    model.graph.node.extend(
        [
            onnx.helper.make_node("ArgMax", ["x"], ["best"], axis=1),
            onnx.helper.make_node("Cast", ["best"], ["y"], to=onnx.TensorProto.FLOAT),
        ]
    )
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1
    return model
