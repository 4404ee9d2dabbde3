"""The measured ensembles: 500 trees of depth 6 over 64 features, trained from a seed by three libraries.

Each is written twice into one repository: as the library's own file for the backend fil, and as ONNX, made by the
converters of the ONNX project, for onnxruntime. A trained model is kept beside the results: training takes a minute.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import joblib
import lightgbm
import numpy as np
import onnx
import onnxmltools
import skl2onnx
import treelite
import xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from sklearn.ensemble import GradientBoostingClassifier

from bench.worker.models import INPUT, OUTPUT, instance_group

FEATURES = 64
TREES = 500
DEPTH = 6
MAX_BATCH = 64
TRAINING_ROWS = 4000
LIBRARIES = ("xgboost", "lightgbm", "sklearn")
#: The backends of the two models of a library, as their names end.
BACKENDS = ("fil", "onnxruntime")
# Old enough for every onnxruntime a peer may bring.
_OPSET = 15

Predict = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Trained:
    """One library's ensemble: its own prediction, its file for fil, its ONNX."""

    library: str
    #: Rows → probability of the second class, on one thread.
    predict: Predict
    model_type: str
    file: Path
    onnx_file: Path


def training_data() -> tuple[np.ndarray, np.ndarray]:
    """Rows and two classes that trees of depth 6 do not exhaust."""
    random = np.random.default_rng(20)
    rows = random.standard_normal((TRAINING_ROWS, FEATURES)).astype(np.float32)
    level = rows @ random.standard_normal(FEATURES) + 3 * rows[:, 0] * rows[:, 1]
    return rows, (level + 3 * random.standard_normal(TRAINING_ROWS) > 0).astype(int)


def trained(library: str, directory: Path) -> Trained:
    """The library's ensemble; read from the directory if it is there."""
    directory.mkdir(parents=True, exist_ok=True)
    onnx_file = directory / f"{library}.onnx"
    with warnings.catch_warnings():
        # The libraries and converters warn of each other's future.
        warnings.simplefilter("ignore")
        return _MAKERS[library](directory, onnx_file)


def _xgboost(directory: Path, onnx_file: Path) -> Trained:
    file = directory / "xgboost.json"
    if not file.exists():
        rows, classes = training_data()
        settings = {"objective": "binary:logistic", "max_depth": DEPTH, "eta": 0.05}
        xgboost.train(settings, xgboost.DMatrix(rows, classes), TREES).save_model(file)
    booster = xgboost.Booster({"nthread": 1}, model_file=file)
    if not onnx_file.exists():
        _save(onnxmltools.convert_xgboost(booster, initial_types=_types(), target_opset=_OPSET), onnx_file)
    return Trained("xgboost", booster.inplace_predict, "xgboost_json", file, onnx_file)


def _lightgbm(directory: Path, onnx_file: Path) -> Trained:
    file = directory / "model.txt"
    if not file.exists():
        rows, classes = training_data()
        settings = {"objective": "binary", "num_leaves": 2**DEPTH, "max_depth": DEPTH, "learning_rate": 0.05}
        settings |= {"min_data_in_leaf": 5, "verbose": -1}
        lightgbm.train(settings, lightgbm.Dataset(rows, classes), TREES).save_model(file)
    booster = lightgbm.Booster(model_file=file)
    if not onnx_file.exists():
        options = {"initial_types": _types(), "target_opset": _OPSET, "zipmap": False}
        _save(onnxmltools.convert_lightgbm(booster, **options), onnx_file)

    def predict(rows: np.ndarray) -> np.ndarray:
        return np.asarray(booster.predict(rows, num_threads=1))

    return Trained("lightgbm", predict, "lightgbm", file, onnx_file)


def _sklearn(directory: Path, onnx_file: Path) -> Trained:
    file = directory / "checkpoint.tl"
    fitted = directory / "sklearn.joblib"
    if not fitted.exists():
        estimator = GradientBoostingClassifier(n_estimators=TREES, max_depth=DEPTH, max_features=8, random_state=0)
        joblib.dump(estimator.fit(*training_data()), fitted)
    estimator = joblib.load(fitted)
    if not file.exists():
        treelite.sklearn.import_model(estimator).serialize(file)
    if not onnx_file.exists():
        sample = np.zeros((1, FEATURES), np.float32)
        _save(skl2onnx.to_onnx(estimator, sample, options={"zipmap": False}, target_opset=_OPSET), onnx_file)

    def predict(rows: np.ndarray) -> np.ndarray:
        return np.asarray(estimator.predict_proba(rows)[:, 1])

    return Trained("sklearn", predict, "treelite_checkpoint", file, onnx_file)


_MAKERS = {"xgboost": _xgboost, "lightgbm": _lightgbm, "sklearn": _sklearn}


def _types() -> list[tuple[str, FloatTensorType]]:
    return [("rows", FloatTensorType([None, FEATURES]))]


def _save(model: onnx.ModelProto, path: Path) -> None:
    """Saves the model with the bench's names, and with the probabilities as its only output."""
    graph = model.graph
    names = {graph.input[0].name: INPUT, graph.output[-1].name: OUTPUT}
    del graph.output[:-1]
    for node in graph.node:
        for ports in (node.input, node.output):
            ports[:] = [names.get(name, name) for name in ports]
    graph.input[0].name, graph.output[0].name = INPUT, OUTPUT
    onnx.save(model, path)


def write_repository(directory: Path, models: list[Trained]) -> Path:
    """Both models of each library, in Triton's layout; returns the directory."""
    for model in models:
        tensors = (
            f"max_batch_size: {MAX_BATCH}\ndynamic_batching {{ }}\n{instance_group(1)}"
            f'input [ {{ name: "{INPUT}" data_type: TYPE_FP32 dims: [ {FEATURES} ] }} ]\n'
            f'output [ {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ 2 ] }} ]\n'
        )
        parameters = {"model_type": model.model_type, "is_classifier": "true", "predict_proba": "true"}
        stated = "".join(
            f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n' for k, v in parameters.items()
        )
        files = {"fil": (model.file, model.file.name, stated), "onnxruntime": (model.onnx_file, "model.onnx", "")}
        for backend, (source, name, more) in files.items():
            place = directory / f"{model.library}_{backend}"
            (place / "1").mkdir(parents=True)
            (place / "1" / name).write_bytes(source.read_bytes())
            (place / "config.pbtxt").write_text(f'backend: "{backend}"\n{tensors}{more}')
    return directory
