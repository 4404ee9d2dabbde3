"""The fil backend: Triton's formats and parameters, what the output is, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import treelite
from config_text import parameter
from load_contexts import MakeContext
from sklearn.ensemble import RandomForestClassifier
from tree_models import FEATURES, boosted, categorical, fitted, imported, light, samples

from isochrone.errors import ConfigError, InvalidArgument, ModelFailed
from isochrone.worker.backends.fil import backend
from isochrone.worker.backends.fil.backend import load

ROWS = samples(20, seed=9, missing=0.1)


def config(outputs: int = 1, batch: int = 32, **parameters: str) -> str:
    text = f"""
        max_batch_size: {batch}
        input {{ name: "input__0" data_type: TYPE_FP32 dims: [ {FEATURES} ] }}
        output {{ name: "output__0" data_type: TYPE_FP32 dims: [ {outputs} ] }}
    """
    return text + "".join(parameter(key, value) for key, value in parameters.items())


def run(make_context: MakeContext, text: str, rows: Any = ROWS) -> Any:
    executable = load(make_context(text))
    try:
        return executable.execute({"input__0": rows}, None)["output__0"]
    finally:
        executable.close()


@pytest.mark.parametrize(
    ("model_type", "file"), [("xgboost_json", "xgboost.json"), ("xgboost_ubj", "xgboost.ubj"), (None, "xgboost.ubj")]
)
def test_files_of_xgboost(tmp_path: Path, make_context: MakeContext, model_type: str | None, file: str) -> None:
    model = boosted("binary:logistic", "two")
    model.save_model(tmp_path / file)
    stated = {"model_type": model_type} if model_type else {}
    given = run(make_context, config(is_classifier="true", predict_proba="true", **stated))
    assert np.allclose(given[:, 0], model.inplace_predict(ROWS), atol=1e-6)
    assert given.dtype == np.float32


def test_files_of_lightgbm(tmp_path: Path, make_context: MakeContext) -> None:
    model = light("multiclass", "three", num_class=3)
    model.save_model(tmp_path / "model.txt")
    text = config(3, model_type="lightgbm", output_class="true", predict_proba="true")
    assert np.allclose(run(make_context, text), model.predict(ROWS), atol=1e-6)


def test_checkpoints_of_scikit_learn(tmp_path: Path, make_context: MakeContext) -> None:
    rows = samples(20, seed=9)
    estimator = fitted(RandomForestClassifier(n_estimators=5, random_state=0), "three")
    imported(estimator).serialize(tmp_path / "checkpoint.tl")
    stated = {"model_type": "treelite_checkpoint", "is_classifier": "true"}
    given = run(make_context, config(3, predict_proba="true", **stated), rows)
    assert np.allclose(given, estimator.predict_proba(rows), atol=1e-6)
    assert run(make_context, config(**stated), rows)[:, 0].tolist() == estimator.predict(rows).tolist()


def test_a_file_of_another_name_and_other_tensor_names(tmp_path: Path, make_context: MakeContext) -> None:
    boosted("reg:squarederror", "number").save_model(tmp_path / "scores.json")
    text = config(model_type="xgboost_json").replace("input__0", "rows").replace("output__0", "score")
    executable = load(make_context(text + 'default_model_filename: "scores.json"'))
    assert list(executable.execute({"rows": ROWS}, ("score",))) == ["score"]


def test_two_classes(tmp_path: Path, make_context: MakeContext) -> None:
    model = boosted("binary:logistic", "two")
    model.save_model(tmp_path / "xgboost.json")
    chances = model.inplace_predict(ROWS)
    stated = {"model_type": "xgboost_json"}
    # The class is the default, since the model is a classifier; both names of the parameter turn it off.
    assert run(make_context, config(**stated))[:, 0].tolist() == (chances > 0.5).tolist()
    strict = config(threshold="0.8", is_classifier="true", **stated)
    assert run(make_context, strict)[:, 0].tolist() == (chances > 0.8).tolist()
    assert not np.array_equal(chances > 0.8, chances > 0.5)
    for off in ({"is_classifier": "false"}, {"output_class": "false"}):
        assert np.allclose(run(make_context, config(**off, **stated))[:, 0], chances, atol=1e-6)
    both = run(make_context, config(2, predict_proba="true", **stated))
    assert np.allclose(both, np.stack([1 - chances, chances], axis=1), atol=1e-6)


def test_answers_own_their_memory_and_rows_are_independent(tmp_path: Path, make_context: MakeContext) -> None:
    boosted("reg:squarederror", "number").save_model(tmp_path / "xgboost.json")
    executable = load(make_context(config(model_type="xgboost_json")))
    assert (executable.fresh_outputs, executable.only_computes) == (True, True)
    whole = executable.execute({"input__0": ROWS}, None)["output__0"]
    kept = whole.copy()
    single = [executable.execute({"input__0": ROWS[n : n + 1]}, None)["output__0"] for n in range(len(ROWS))]
    assert np.array_equal(np.concatenate(single), kept)
    assert np.array_equal(whole, kept)


def test_a_model_without_batches(tmp_path: Path, make_context: MakeContext) -> None:
    boosted("reg:squarederror", "number").save_model(tmp_path / "xgboost.json")
    text = config(batch=0).replace(f"dims: [ {FEATURES} ]", f"dims: [ -1, {FEATURES} ]")
    assert run(make_context, text.replace("dims: [ 1 ]", "dims: [ -1, 1 ]")).shape == (len(ROWS), 1)


def test_settings_of_gpus_change_nothing(tmp_path: Path, make_context: MakeContext) -> None:
    boosted("reg:squarederror", "number").save_model(tmp_path / "xgboost.json")
    tuning = {"algo": "ALGO_AUTO", "storage_type": "AUTO", "blocks_per_sm": "0", "threads_per_tree": "1"}
    newer = {
        "chunk_size": "4",
        "layout": "layered",
        "transfer_threshold": "2",
        "use_experimental_optimizations": "true",
    }
    expected = run(make_context, config())
    assert np.array_equal(run(make_context, config(**tuning, **newer)), expected)
    for threads in ("2", "-1"):
        assert np.allclose(run(make_context, config(cpu_nthread=threads)), expected)


def test_categories_run_in_treelite(tmp_path: Path, make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[dict[str, Any]] = []
    monkeypatch.setattr(backend.log, "warning", lambda _, **details: warned.append(details))
    model = categorical()
    model.save_model(tmp_path / "model.txt")
    rows = samples(20, seed=9)
    rows[:, 2] = np.arange(20) % 7
    given = run(make_context, config(model_type="lightgbm", predict_proba="true"), rows)
    assert np.allclose(given[:, 0], model.predict(rows), atol=1e-6)
    assert warned == [{"model": "m", "reason": "splits on categories"}]


def test_a_translation_that_differs_is_not_used(
    tmp_path: Path, make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[dict[str, Any]] = []
    monkeypatch.setattr(backend.log, "warning", lambda _, **details: warned.append(details))
    monkeypatch.setattr(backend, "onnx_runtime", lambda *_: lambda rows: np.full((len(rows), 1), 7, np.float32))
    model = boosted("reg:squarederror", "number")
    model.save_model(tmp_path / "xgboost.json")
    assert np.allclose(run(make_context, config())[:, 0], model.inplace_predict(ROWS), atol=1e-5)
    assert warned == [{"model": "m", "reason": "answers that differ from treelite's"}]


# treelite warns of the field it does not know, from within its library.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_unknown_fields_of_xgboost(tmp_path: Path, make_context: MakeContext) -> None:
    path = tmp_path / "xgboost.json"
    boosted("reg:squarederror", "number").save_model(path)
    path.write_text(path.read_text().replace('{"learner":{', '{"learner":{"novelty":{"a":1},', 1))
    with pytest.raises(InvalidArgument, match=r"xgboost\.json: treelite cannot load this file as xgboost_json: "):
        load(make_context(config()))
    assert run(make_context, config(xgboost_allow_unknown_field="true")).shape == (len(ROWS), 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (config(model_type="catboost"), r'parameters\["model_type"\]: expected one of xgboost_json, xgboost_ubj'),
        (config(model_type="lightgbm"), r"model file: expected model\.txt, given no such file"),
        (config(threshold="high"), r'parameters\["threshold"\]: expected a number'),
        (config(predict_proba="perhaps"), r'parameters\["predict_proba"\]: expected a boolean'),
        (config(2), r"output 'output__0' dims: expected \[ 1 \], as the model and its parameters"),
        (
            config().replace("dims: [ 6 ]", "dims: [ 5 ]"),
            r"input 'input__0' dims: expected 6 features, as xgboost\.json",
        ),
        (config().replace("dims: [ 6 ]", "dims: [ -1 ]"), "expected 6 features"),
        (config(batch=0), "expected rows and 6 features"),
        (config().replace("FP32 dims: [ 6", "FP64 dims: [ 6"), "input 'input__0' data_type: expected TYPE_FP32"),
        (config().replace("FP32 dims: [ 1", "INT64 dims: [ 1"), "output 'output__0' data_type: expected TYPE_FP32"),
        (
            config() + 'output { name: "treeshap_output" data_type: TYPE_FP32 dims: [ 7 ] }',
            r"output\.name: expected no Shapley values, which are not computed, given 'treeshap_output'",
        ),
        (config() + 'input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }', "input: expected one input, given"),
        (config() + "sequence_batching { direct { } }", "sequence_batching: expected none"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, make_context: MakeContext, text: str, message: str) -> None:
    boosted("binary:logistic", "two").save_model(tmp_path / "xgboost.json")
    with pytest.raises(ConfigError, match=message):
        load(make_context(text))


def test_a_pickle_is_not_read(tmp_path: Path, make_context: MakeContext) -> None:
    """A pickle's code would run while it is read; treelite's own format has none."""
    program = b"cbuiltins\neval\n(V__import__('pathlib').Path('ran').touch()\ntR."
    (tmp_path / "checkpoint.tl").write_bytes(program)
    with pytest.raises(InvalidArgument, match=r"checkpoint\.tl: treelite cannot load this file"):
        load(make_context(config(model_type="treelite_checkpoint")))
    assert not Path("ran").exists()


def test_models_of_several_targets_are_refused(tmp_path: Path, make_context: MakeContext) -> None:
    from sklearn.ensemble import RandomForestRegressor

    rows = samples()
    forest = RandomForestRegressor(n_estimators=2, max_depth=2, random_state=0).fit(rows, rows[:, :2])
    treelite.sklearn.import_model(forest).serialize(tmp_path / "checkpoint.tl")
    with pytest.raises(InvalidArgument, match="expected a model with one target, given 2"):
        load(make_context(config(model_type="treelite_checkpoint")))


def test_a_failing_run_names_the_model(tmp_path: Path, make_context: MakeContext) -> None:
    boosted("reg:squarederror", "number").save_model(tmp_path / "xgboost.json")
    with pytest.raises(ModelFailed, match="model 'm' version 1: trees: "):
        run(make_context, config(), np.zeros((1, 2), np.float64))
