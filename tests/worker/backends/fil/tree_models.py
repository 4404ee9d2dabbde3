"""Small seeded ensembles of XGBoost, LightGBM and scikit-learn, for the tests of trees."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import treelite
import xgboost

FEATURES = 6
Array = np.ndarray[Any, Any]


def samples(count: int = 240, seed: int = 0, missing: float = 0.0) -> Array:
    random = np.random.default_rng(seed)
    rows = random.standard_normal((count, FEATURES)).astype(np.float32)
    rows[random.random(rows.shape) < missing] = np.nan
    return rows


def targets(rows: Array) -> dict[str, Array]:
    """Two classes, three classes, a positive number."""
    level = np.nan_to_num(rows[:, 0] + rows[:, 1] * rows[:, 2])
    return {"two": (level > 0).astype(int), "three": np.digitize(level, [-0.5, 0.5]), "number": np.abs(level) / 4 + 0.1}


def boosted(objective: str, target: str, missing: float = 0.1, **options: Any) -> xgboost.Booster:
    rows = samples(missing=missing)
    settings = {"objective": objective, "max_depth": 3, "nthread": 1, **options}
    return xgboost.train(settings, xgboost.DMatrix(rows, targets(rows)[target]), 8)


def light(objective: str, target: str, missing: float = 0.1, **options: Any) -> lightgbm.Booster:
    rows = samples(missing=missing)
    settings = {"objective": objective, "num_leaves": 8, "num_threads": 1, "verbose": -1, "seed": 1, **options}
    values = np.clip(targets(rows)[target], 0, 2)
    return lightgbm.train(settings, lightgbm.Dataset(rows, values), 8)


def categorical() -> lightgbm.Booster:
    """Splits on a category, which ONNX's trees do not have."""
    rows = samples()
    rows[:, 2] = np.random.default_rng(1).integers(0, 5, len(rows))
    settings = {"objective": "binary", "min_data_per_group": 1, "cat_smooth": 1, "num_threads": 1, "verbose": -1}
    data = lightgbm.Dataset(rows, (rows[:, 2] % 2 == 0).astype(int), categorical_feature=[2])
    return lightgbm.train(settings, data, 4)


def fitted(estimator: Any, target: str) -> Any:
    rows = samples()
    return estimator.fit(rows, targets(rows)[target])


def imported(estimator: Any) -> treelite.Model:
    return treelite.sklearn.import_model(estimator)
