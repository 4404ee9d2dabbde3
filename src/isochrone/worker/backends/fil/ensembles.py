"""Tree ensembles as treelite reads them from the files of XGBoost, LightGBM and treelite itself.

treelite is the one reader of every format, as in Triton's fil backend. Files are parsed, never unpickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isochrone.errors import InvalidArgument

#: treelite's numbers of tasks whose answer is a class.
_CLASSIFIERS = (0, 2)  # binary, several classes
_SIGMOIDS = ("sigmoid", "multiclass_ova")


@dataclass(frozen=True, slots=True)
class Ensemble:
    """One model of trees, with what decides its outputs."""

    model: Any
    features: int
    #: Scores per row: 1 for regression and for two classes of which the second one's probability is given.
    scores: int
    is_classifier: bool
    postprocessor: str
    #: The factor of ``sigmoid`` and ``multiclass_ova``, the constant of ``exponential_standard_ratio``.
    postprocessor_constant: float
    averages: bool
    base_scores: npt.NDArray[np.float64]
    #: The class that each tree adds to; -1: every leaf has a value for each class.
    class_of_tree: npt.NDArray[np.int32]


def read_ensemble(treelite: Any, path: Path, model_type: str, allow_unknown_fields: bool) -> Ensemble:
    """``model_type`` is Triton's name of the format."""
    try:
        model = _read(treelite, path, model_type, allow_unknown_fields)
    except Exception as error:  # treelite's own, and those of its parsers
        raise InvalidArgument(f"{path}: treelite cannot load this file as {model_type}: {error}") from error
    header = model.get_header_accessor()
    if header.get_field("num_target")[0] != 1:
        raise InvalidArgument(f"{path}: expected a model with one target, given {header.get_field('num_target')[0]}")
    postprocessor = str(header.get_field("postprocessor"))
    constant = "sigmoid_alpha" if postprocessor in _SIGMOIDS else "ratio_c"
    return Ensemble(
        model=model,
        features=int(header.get_field("num_feature")[0]),
        scores=int(header.get_field("num_class")[0]),
        is_classifier=int(header.get_field("task_type")[0]) in _CLASSIFIERS,
        postprocessor=postprocessor,
        postprocessor_constant=float(header.get_field(constant)[0]),
        averages=bool(header.get_field("average_tree_output")[0]),
        base_scores=np.array(header.get_field("base_scores"), np.float64),
        class_of_tree=np.array(header.get_field("class_id"), np.int32),
    )


def _read(treelite: Any, path: Path, model_type: str, allow_unknown_fields: bool) -> Any:
    frontend = treelite.frontend
    if model_type == "lightgbm":
        return frontend.load_lightgbm_model(path)
    if model_type == "treelite_checkpoint":
        return treelite.Model.deserialize(path)
    if model_type == "xgboost":
        return frontend.load_xgboost_model_legacy_binary(path)
    form = model_type.removeprefix("xgboost_").replace("ubj", "ubjson")
    return frontend.load_xgboost_model(path, format_choice=form, allow_unknown_field=allow_unknown_fields)
