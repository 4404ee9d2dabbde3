"""Models of decision trees, with the parameters of Triton's fil backend, on the CPU.

``load`` reads the file with treelite and translates it to ONNX, which onnxruntime runs faster; a model that ONNX cannot
express, or whose translation answers differently, runs in treelite's own interpreter. The worker then calls ``execute``
with whole batches. There is one input, rows of FP32 features, and one output, whatever their names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import structlog

from isochrone.errors import ConfigError, ModelFailed
from isochrone.models.configuration.backends import TREE_FILES
from isochrone.models.runtimes import optional_runtime
from isochrone.worker.backends import parameters
from isochrone.worker.backends.fil.ensembles import Ensemble, read_ensemble
from isochrone.worker.backends.fil.graph import Untranslatable, onnx_runtime
from isochrone.worker.backends.fil.treelite_runtime import treelite_runtime
from isochrone.worker.backends.interface import Executable, LoadContext

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors

log = structlog.get_logger(__name__)

Rows = npt.NDArray[np.float32]
#: Rows of features, or of scores → rows of scores, or of answers.
Step = Callable[[Rows], Rows]

_EXTRA = "trees"
_TYPE_BY_SUFFIX = {Path(file).suffix: model_type for model_type, file in TREE_FILES.items()}
_TRITONS_DEFAULT_TYPE = "xgboost"
_SHAPLEY = "treeshap_output"
# Sums of FP32 in another order differ by less; a wrong branch differs by more.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5
_PROBES = 64


class TreesExecutable(Executable):
    """One ensemble: features to scores, scores to what the configuration declares."""

    fresh_outputs = True
    only_computes = True

    def __init__(self, context: LoadContext, run: Step, answer: Step) -> None:
        self._label = f"model '{context.model_name}' version {context.model_version}"
        self._input = context.signature.inputs[0].name
        self._output = context.signature.outputs[0].name
        self._run: Step | None = run
        self._answer = answer

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        assert self._run is not None
        try:
            return {self._output: self._answer(self._run(inputs[self._input]))}
        except Exception as error:
            raise ModelFailed(f"{self._label}: trees: {error}") from error

    def close(self) -> None:
        self._run = None


def load(context: LoadContext) -> Executable:
    where = parameters.where(context)
    treelite = optional_runtime("treelite", _EXTRA, where)
    onnx = optional_runtime("onnx", _EXTRA, where)
    path, model_type = _model_file(context)
    unknown_fields = parameters.boolean(context, "xgboost_allow_unknown_field", False)
    ensemble = read_ensemble(treelite, path, model_type, unknown_fields)
    _check_tensors(context, ensemble, path)
    # Triton's default, -1, is every core. One thread, as for onnxruntime: instances and batches scale better.
    threads = parameters.integer(context, "cpu_nthread", 1, minimum=-1)
    answer = _answer(context, ensemble)
    return TreesExecutable(context, _fastest(context, treelite, onnx, ensemble, max(threads, 0)), answer)


def _model_file(context: LoadContext) -> tuple[Path, str]:
    """The model's file and Triton's name of its format."""
    stated = parameters.text(context, "model_type")
    if stated is not None and stated not in TREE_FILES:
        parameters.reject(context, "model_type", "one of " + ", ".join(TREE_FILES), stated)
    given = str(context.config.default_model_filename)
    types = list(TREE_FILES) if stated is None else [stated]
    names = [given] if given else [TREE_FILES[model_type] for model_type in types]
    for name in names:
        path = context.directory / name
        if path.is_file():
            return path, stated or _TYPE_BY_SUFFIX.get(path.suffix, _TRITONS_DEFAULT_TYPE)
    raise ConfigError(str(context.directory), "model file", " or ".join(names), "no such file")


def _check_tensors(context: LoadContext, ensemble: Ensemble, path: Path) -> None:
    where, signature = parameters.where(context), context.signature
    if context.config.HasField("sequence_batching"):
        raise ConfigError(where, "sequence_batching", "none: trees keep no state", "one")
    for spec in signature.outputs:
        if spec.name == _SHAPLEY:
            raise ConfigError(where, "output.name", "no Shapley values, which are not computed", f"'{_SHAPLEY}'")
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        if len(specs) != 1:
            raise ConfigError(where, kind, f"one {kind}", ", ".join(spec.name for spec in specs))
        if specs[0].datatype != "FP32":
            raise ConfigError(where, f"{kind} '{specs[0].name}' data_type", "TYPE_FP32", specs[0].datatype)
    spec = signature.inputs[0]
    dims = spec.dims if spec.reshape is None else spec.reshape
    # A row that is too short would be read past its end.
    if len(dims) != (1 if signature.max_batch_size else 2) or dims[-1] != ensemble.features:
        expected = f"{'' if signature.max_batch_size else 'rows and '}{ensemble.features} features, as {path.name} has"
        raise ConfigError(where, f"input '{spec.name}' dims", expected, str(list(dims)))


def _answer(context: LoadContext, ensemble: Ensemble) -> Step:
    """What becomes of scores: the class's number, or the scores as they are."""
    # ``output_class`` is the name that Triton used before 25.09.
    classifier = parameters.boolean(context, "output_class", ensemble.is_classifier)
    classifier = parameters.boolean(context, "is_classifier", classifier)
    probabilities = parameters.boolean(context, "predict_proba", False)
    threshold = _number(context, "threshold", 0.5)
    spec = context.signature.outputs[0]
    width = (spec.dims if spec.reshape is None else spec.reshape)[-1]
    step: Step = _scores
    given = ensemble.scores
    if classifier and not probabilities:
        step, given = (_best, 1) if ensemble.scores > 1 else (_above(threshold), 1)
    elif classifier and ensemble.scores == 1 and width == 2:
        step, given = _both, 2
    if width not in (-1, given):
        expected = f"[ {given} ], as the model and its parameters is_classifier and predict_proba give"
        raise ConfigError(parameters.where(context), f"output '{spec.name}' dims", expected, str(list(spec.dims)))
    return step


def _scores(scores: Rows) -> Rows:
    return scores


def _best(scores: Rows) -> Rows:
    return np.asarray(np.argmax(scores, axis=1, keepdims=True), np.float32)


def _both(scores: Rows) -> Rows:
    return np.concatenate([1 - scores, scores], axis=1)


def _above(threshold: float) -> Step:
    return lambda scores: (scores > threshold).astype(np.float32)


def _number(context: LoadContext, key: str, default: float) -> float:
    value = parameters.text(context, key)
    if value is None:
        return default
    try:
        return float(value)
    except ValueError:
        parameters.reject(context, key, "a number", value)


def _fastest(context: LoadContext, treelite: Any, onnx: Any, ensemble: Ensemble, threads: int) -> Step:
    """The translated ensemble if it answers as treelite does, else treelite."""
    slow = treelite_runtime(treelite, ensemble, threads)
    try:
        fast = onnx_runtime(onnx, ensemble, threads)
    except Untranslatable as error:
        reason = str(error)
    else:
        probes = _probes(ensemble)
        expected = slow(probes)
        size = np.abs(expected[np.isfinite(expected)]).max(initial=1)
        if np.allclose(fast(probes), expected, rtol=_RELATIVE, atol=_ABSOLUTE * size, equal_nan=True):
            return fast
        reason = "answers that differ from treelite's"
    log.warning("trees run in treelite's interpreter, not in onnxruntime", model=context.model_name, reason=reason)
    return slow


def _probes(ensemble: Ensemble) -> Rows:
    """Rows whose values are thresholds of the model and their neighbours, some missing: they find a wrong branch."""
    random = np.random.default_rng(0)
    by_feature: list[list[Any]] = [[0.0] for _ in range(ensemble.features)]
    count = len(ensemble.class_of_tree)
    for tree in random.choice(count, min(count, _PROBES), replace=False):
        fields = ensemble.model.get_tree_accessor(int(tree))
        features, thresholds = fields.get_field("split_index"), fields.get_field("threshold")
        for feature, threshold in zip(features, thresholds, strict=True):
            if feature >= 0:
                by_feature[feature].append(threshold)
    sides = random.integers(-1, 2, (_PROBES, ensemble.features))
    with np.errstate(over="ignore", under="ignore"):  # LightGBM has thresholds beyond FP32
        chosen = [random.choice(np.array(values), _PROBES) for values in by_feature]
        rows = np.stack(chosen, axis=1).astype(np.float32)
        rows = np.where(sides < 0, np.nextafter(rows, np.float32(-np.inf)), rows)
        rows = np.where(sides > 0, np.nextafter(rows, np.float32(np.inf)), rows)
    rows[random.random(rows.shape) < 0.05] = np.nan
    return np.ascontiguousarray(rows, np.float32)
