"""Ensembles as ONNX answer as treelite does, at thresholds and for missing values too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import treelite
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from tree_models import boosted, categorical, fitted, imported, light, samples

from isochrone.worker.backends.fil.backend import _probes
from isochrone.worker.backends.fil.ensembles import Ensemble, read_ensemble
from isochrone.worker.backends.fil.graph import Untranslatable, _exact_thresholds, onnx_runtime
from isochrone.worker.backends.fil.treelite_runtime import treelite_runtime

SMALL = {"n_estimators": 5, "max_depth": 3, "random_state": 0}
HISTOGRAM = {"max_iter": 5, "max_depth": 3, "random_state": 0}
MODELS: dict[str, Callable[[], treelite.Model]] = {
    **{
        f"xgboost {objective}": lambda objective=objective, target=target: treelite.frontend.from_xgboost(  # type: ignore[misc]
            boosted(objective, target)
        )
        for objective, target in (
            ("binary:logistic", "two"),
            ("binary:hinge", "two"),
            ("binary:logitraw", "two"),
            ("reg:squarederror", "number"),
            ("count:poisson", "number"),
            ("reg:tweedie", "number"),
        )
    },
    "xgboost softmax": lambda: treelite.frontend.from_xgboost(boosted("multi:softmax", "three", num_class=3)),
    "xgboost dart": lambda: treelite.frontend.from_xgboost(
        boosted("reg:squarederror", "number", booster="dart", rate_drop=0.3)
    ),
    **{
        f"lightgbm {objective}": lambda objective=objective, target=target: treelite.frontend.from_lightgbm(  # type: ignore[misc]
            light(objective, target)
        )
        for objective, target in (
            ("binary", "two"),
            ("regression", "number"),
            ("cross_entropy_lambda", "two"),
            ("poisson", "number"),
        )
    },
    "lightgbm square root": lambda: treelite.frontend.from_lightgbm(light("regression", "number", reg_sqrt=True)),
    "lightgbm softmax": lambda: treelite.frontend.from_lightgbm(light("multiclass", "three", num_class=3)),
    "lightgbm one against all": lambda: treelite.frontend.from_lightgbm(
        light("multiclassova", "three", num_class=3, sigmoid=0.7)
    ),
    "lightgbm averaged": lambda: treelite.frontend.from_lightgbm(
        light("multiclass", "three", num_class=3, boosting="rf", bagging_freq=1, bagging_fraction=0.5)
    ),
    "random forest of two": lambda: imported(fitted(RandomForestClassifier(**SMALL), "two")),
    "random forest of three": lambda: imported(fitted(RandomForestClassifier(**SMALL), "three")),
    "random forest": lambda: imported(fitted(RandomForestRegressor(**SMALL), "number")),
    "extra trees of three": lambda: imported(fitted(ExtraTreesClassifier(**SMALL), "three")),
    "extra trees": lambda: imported(fitted(ExtraTreesRegressor(**SMALL), "number")),
    "gradient boosting of two": lambda: imported(fitted(GradientBoostingClassifier(**SMALL), "two")),
    "gradient boosting of three": lambda: imported(fitted(GradientBoostingClassifier(**SMALL), "three")),
    "gradient boosting": lambda: imported(fitted(GradientBoostingRegressor(**SMALL), "number")),
    "histogram of two": lambda: imported(fitted(HistGradientBoostingClassifier(**HISTOGRAM), "two")),
    "histogram": lambda: imported(fitted(HistGradientBoostingRegressor(**HISTOGRAM), "number")),
    "isolation forest": lambda: imported(fitted(IsolationForest(n_estimators=5, random_state=0), "two")),
}


def ensemble_of(model: treelite.Model, directory: Path) -> Ensemble:
    model.serialize(directory / "checkpoint.tl")
    return read_ensemble(treelite, directory / "checkpoint.tl", "treelite_checkpoint", False)


@pytest.mark.parametrize("name", MODELS)
def test_translations_answer_as_treelite(tmp_path: Path, name: str) -> None:
    ensemble = ensemble_of(MODELS[name](), tmp_path)
    rows = np.concatenate([_probes(ensemble), samples(64, seed=5, missing=0.2)])
    expected = treelite_runtime(treelite, ensemble, 1)(rows)
    given = onnx_runtime(onnx, ensemble, 1)(rows)
    assert given.dtype == np.float32
    assert given.shape == (len(rows), ensemble.scores)
    assert np.allclose(given, expected, rtol=1e-5, atol=2e-6)
    # Rows that all end in one leaf would prove nothing.
    assert len(np.unique(expected[:, 0])) > 1


def test_probes_stand_on_both_sides_of_thresholds(tmp_path: Path) -> None:
    """With thresholds moved by one FP32, the answers at the probes differ: a wrong branch is found."""
    ensemble = ensemble_of(MODELS["lightgbm regression"](), tmp_path)
    rows = _probes(ensemble)
    run = onnx_runtime(onnx, ensemble, 1)
    with np.errstate(over="ignore"):
        moved = np.nextafter(rows, np.float32(np.inf))
    assert not np.allclose(run(rows), run(moved), rtol=1e-4, atol=1e-5, equal_nan=True)
    assert np.isnan(rows).any()


def test_categories_are_not_translated(tmp_path: Path) -> None:
    ensemble = ensemble_of(treelite.frontend.from_lightgbm(categorical()), tmp_path)
    with pytest.raises(Untranslatable, match="splits on categories"):
        onnx_runtime(onnx, ensemble, 1)


@given(
    threshold=st.floats(allow_nan=False, allow_infinity=False),
    value=st.floats(allow_nan=False, width=32),
    near=st.integers(-2, 2),
    code=st.sampled_from([2, 3, 4, 5]),
)
def test_rounded_thresholds_decide_alike(threshold: float, value: float, near: int, code: int) -> None:
    compare: dict[int, Callable[[Any, Any], Any]] = {2: np.less, 3: np.less_equal, 4: np.greater, 5: np.greater_equal}
    rounded = _exact_thresholds(np.array([threshold]), np.array([code]))[0]
    with np.errstate(over="ignore", under="ignore"):
        x = np.float32(threshold)
        for _ in range(abs(near)):
            x = np.nextafter(x, np.float32(np.copysign(np.inf, near)))
    for each in (np.float32(value), x):
        assert compare[code](each, rounded) == compare[code](np.float64(each), threshold)
