"""Runs an ensemble by onnxruntime, as one TreeEnsembleRegressor and the operator of its postprocessor.

onnxruntime is six times as fast as treelite's interpreter or more, at one row and at 64 (docs/decisions/0021-trees.md).
Inputs are FP32. A threshold of 64 bits is rounded to the FP32 next to it on the side that decides every FP32 input
alike; sums and leaves are FP32, as in Triton's backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from isochrone.models import onnx_telemetry as onnx_telemetry
from isochrone.worker.backends import session_calls
from isochrone.worker.backends.fil.ensembles import Ensemble

Rows = npt.NDArray[np.float32]

#: treelite's operators of comparison → modes of ONNX.
_MODES = {2: "BRANCH_LT", 3: "BRANCH_LEQ", 4: "BRANCH_GT", 5: "BRANCH_GTE"}
#: Whether the FP32 that replaces a threshold is not above (-1) or not below (1) it.
_ROUNDING = {2: 1, 3: -1, 4: -1, 5: 1}
# Old enough for every onnxruntime that pyproject.toml allows.
_OPSET, _ML_OPSET, _IR_VERSION = 17, 1, 8
# A list of Python numbers per attribute: larger ensembles would take gigabytes while they load.
_MOST_NODES = 5_000_000


class Untranslatable(Exception):
    """This ensemble has no counterpart in ONNX; the message says why."""


def onnx_runtime(onnx: Any, ensemble: Ensemble, threads: int) -> Callable[[Rows], Rows]:
    """Rows of features → rows of scores. Raises ``Untranslatable``."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(translate(onnx, ensemble), options, providers=["CPUExecutionProvider"])
    call = session_calls.plain_run(session)
    names = ["scores"]

    def run(rows: Rows) -> Rows:
        scores: Rows = call(names, {"rows": rows})[0]
        return scores

    return run


def translate(onnx: Any, ensemble: Ensemble) -> bytes:
    """The ensemble as an ONNX model."""
    helper = onnx.helper
    attributes = _trees(ensemble)
    attributes["base_values"] = [float(score) for score in ensemble.base_scores]
    attributes["n_targets"] = ensemble.scores
    steps = _postprocessing(ensemble)
    sums = "sums" if steps else "scores"
    nodes = [helper.make_node("TreeEnsembleRegressor", ["rows"], [sums], domain="ai.onnx.ml", **attributes)]
    constants = []
    for number, (operator, constant) in enumerate(steps):
        taken = [sums]
        if constant is not None:
            taken.append(f"constant{number}")
            constants.append(onnx.numpy_helper.from_array(np.array(constant, np.float32), taken[1]))
        if operator == "ReversedPow":  # constant ** value
            operator, taken = "Pow", taken[::-1]
        if operator == "Square":
            operator, taken = "Mul", [sums, "magnitude"]
            nodes.append(helper.make_node("Abs", [sums], ["magnitude"]))
        sums = "scores" if number == len(steps) - 1 else f"step{number}"
        details = {"to": 1} if operator == "Cast" else {}
        nodes.append(helper.make_node(operator, taken, [sums], **details))
    shape = [("rows", ensemble.features), ("scores", ensemble.scores)]
    declared = [helper.make_tensor_value_info(name, 1, ["batch", width]) for name, width in shape]
    graph = helper.make_graph(nodes, "trees", declared[:1], declared[1:], constants)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
    content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION).SerializeToString()
    return content


def _postprocessing(ensemble: Ensemble) -> list[tuple[str, float | None]]:
    """Operators with their constants, by treelite's name of the postprocessor."""
    constant = ensemble.postprocessor_constant
    sigmoid: list[tuple[str, float | None]] = [("Sigmoid", None)]
    if constant != 1:
        sigmoid.insert(0, ("Mul", constant))
    known: dict[str, list[tuple[str, float | None]]] = {
        "identity": [],
        "identity_multiclass": [],
        "sigmoid": sigmoid,
        "multiclass_ova": sigmoid,
        "softmax": [("Softmax", None)],
        "exponential": [("Exp", None)],
        "logarithm_one_plus_exp": [("Softplus", None)],
        "signed_square": [("Square", None)],
        "hinge": [("Greater", 0.0), ("Cast", None)],
        "exponential_standard_ratio": [("Div", -constant), ("ReversedPow", 2.0)],
    }
    if ensemble.postprocessor not in known:
        raise Untranslatable(f"its postprocessor '{ensemble.postprocessor}'")
    return known[ensemble.postprocessor]


def _trees(ensemble: Ensemble) -> dict[str, Any]:
    """The nodes and leaves of all trees, as TreeEnsembleRegressor lists them."""
    count = len(ensemble.class_of_tree)
    columns: dict[str, list[Any]] = {name: [] for name in ("trees", "nodes", "parents", "features", "modes", "values")}
    columns |= {name: [] for name in ("left", "right", "missing", "leaf_trees", "leaves", "targets", "weights")}
    total = 0
    for tree in range(count):
        fields = ensemble.model.get_tree_accessor(tree)
        if fields.get_field("has_categorical_split")[0]:
            raise Untranslatable("splits on categories")
        left = np.array(fields.get_field("cleft"))
        right = np.array(fields.get_field("cright"))
        size = len(left)
        total += size
        if total > _MOST_NODES:
            raise Untranslatable(f"more than {_MOST_NODES:,} nodes")
        inner = left >= 0
        operators = np.array(fields.get_field("cmp"))
        if not np.isin(operators[inner], list(_MODES)).all():
            raise Untranslatable("comparisons that ONNX does not have")
        thresholds = np.array(fields.get_field("threshold"))
        columns["trees"] += [tree] * size
        columns["nodes"] += range(size)
        columns["features"] += np.where(inner, fields.get_field("split_index"), 0).tolist()
        columns["modes"] += [
            _MODES[code] if is_inner else "LEAF" for code, is_inner in zip(operators, inner, strict=True)
        ]
        columns["values"] += _exact_thresholds(np.where(inner, thresholds, 0), operators).tolist()
        columns["left"] += np.where(inner, left, 0).tolist()
        columns["right"] += np.where(inner, right, 0).tolist()
        columns["missing"] += np.where(inner, fields.get_field("default_left"), 0).tolist()
        _add_leaves(columns, ensemble, tree, fields, np.flatnonzero(~inner))
    return {
        "nodes_treeids": columns["trees"],
        "nodes_nodeids": columns["nodes"],
        "nodes_featureids": columns["features"],
        "nodes_modes": columns["modes"],
        "nodes_values": columns["values"],
        "nodes_truenodeids": columns["left"],
        "nodes_falsenodeids": columns["right"],
        "nodes_missing_value_tracks_true": columns["missing"],
        "target_treeids": columns["leaf_trees"],
        "target_nodeids": columns["leaves"],
        "target_ids": columns["targets"],
        "target_weights": columns["weights"],
    }


def _add_leaves(
    columns: dict[str, list[Any]], ensemble: Ensemble, tree: int, fields: Any, leaves: npt.NDArray[np.intp]
) -> None:
    vector = np.array(fields.get_field("leaf_vector"), np.float64)
    target = int(ensemble.class_of_tree[tree])
    if len(vector):
        begins = np.array(fields.get_field("leaf_vector_begin")).astype(np.int64)[leaves]
        values = vector[begins[:, None] + np.arange(ensemble.scores)]
        if target >= 0 or len(vector) != len(leaves) * ensemble.scores:
            raise Untranslatable("leaves with values of some classes only")
        targets = list(range(ensemble.scores))
    else:
        values = np.array(fields.get_field("leaf_value"), np.float64)[leaves][:, None]
        # Without a class of its own, a single value counts for every class.
        targets = [target] if target >= 0 else list(range(ensemble.scores))
        values = np.repeat(values, len(targets), axis=1)
    if ensemble.averages:
        # treelite divides each class by the number of trees that add to it.
        among = ensemble.class_of_tree
        values = values / np.array([np.count_nonzero((among == each) | (among < 0)) for each in targets])
    columns["leaf_trees"] += [tree] * values.size
    columns["leaves"] += np.repeat(leaves, len(targets)).tolist()
    columns["targets"] += targets * len(leaves)
    columns["weights"] += values.astype(np.float32).ravel().tolist()


def _exact_thresholds(thresholds: npt.NDArray[Any], operators: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """FP32 thresholds that decide every FP32 value as the given ones do: ``x <= t`` is ``x <= (FP32 below t)``."""
    if thresholds.dtype == np.float32:
        return thresholds
    below = [code for code, side in _ROUNDING.items() if side < 0]
    above = [code for code, side in _ROUNDING.items() if side > 0]
    with np.errstate(over="ignore", under="ignore"):  # LightGBM has thresholds beyond FP32
        rounded = thresholds.astype(np.float32)
        exact = rounded.astype(np.float64)
        down = np.isin(operators, below) & (exact > thresholds)
        up = np.isin(operators, above) & (exact < thresholds)
        rounded = np.where(down, np.nextafter(rounded, np.float32(-np.inf)), rounded)
        return np.where(up, np.nextafter(rounded, np.float32(np.inf)), rounded).astype(np.float32)
