"""The inputs of a kind of requests: from a file, or random, as the model's metadata describes them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isochrone.bench.workload.mix import Kind
from isochrone.client.answers import TensorMetadata
from isochrone.client.calls import InferCall, make_call
from isochrone.client.random_tensors import make_random
from isochrone.errors import ConfigError, IsochroneError
from isochrone.protocol.tensors.json_values import flatten, from_json

#: Different requests of a kind with random inputs, sent in turn: a response cache shall not answer them all.
RANDOM_REQUESTS = 16
#: Bytes of all of them; large inputs are fewer.
_MOST_RANDOM_BYTES = 64 << 20
_EXPECTED_FILE = "a JSON object of input name to values, a list of such objects, or an .npz file"

Arrays = dict[str, NDArray[Any]]


def calls_of(kind: Kind, declared: Sequence[TensorMetadata], headers: Mapping[str, str], seed: int) -> list[InferCall]:
    """The requests of a kind, which are sent in turn. Raises ``ConfigError``."""
    samples = _read(kind, declared) if kind.inputs else _random(kind, declared, seed)
    return [
        make_call(
            kind.model,
            sample,
            None,
            kind.version,
            kind.deadline_ms,
            "",
            kind.priority,
            kind.parameters,
            headers,
        )
        for sample in samples
    ]


def text_objects(kind: Kind) -> list[dict[str, Any]]:
    """The bodies of generate_stream: the file's objects as they are, or the prompt."""
    if kind.inputs:
        return _objects(Path(kind.inputs))
    return [{"text_input": kind.prompt, "max_tokens": kind.max_tokens, **kind.parameters}]


def _random(kind: Kind, declared: Sequence[TensorMetadata], seed: int) -> list[Arrays]:
    fitted = [_fitted(kind, each) for each in declared]
    for name in kind.shapes:
        if name not in [each.name for each in declared]:
            known = ", ".join(each.name for each in declared)
            raise ConfigError(f"kind '{kind.label}'", f"shapes.{name}", f"an input of '{kind.model}' ({known})", name)
    random = np.random.default_rng([seed, 2])
    samples: list[Arrays] = []
    size = 0
    while len(samples) < RANDOM_REQUESTS and (not samples or size < _MOST_RANDOM_BYTES):
        samples.append({each.name: make_random(each, kind.rows, random) for each in fitted})
        size += sum(array.nbytes for array in samples[-1].values())
    return samples


def _fitted(kind: Kind, declared: TensorMetadata) -> TensorMetadata:
    """The input with the sizes that the workload gives: all of its dimensions, or all but the batch's."""
    sizes = kind.shapes.get(declared.name)
    if sizes is None:
        return declared
    shape = tuple(sizes) if len(sizes) == len(declared.shape) else (*declared.shape[:1], *sizes)
    if len(shape) != len(declared.shape) or any(
        fixed not in (-1, size) for fixed, size in zip(declared.shape, shape, strict=True)
    ):
        given = f"{list(sizes)}, and the model has {list(declared.shape)}"
        where, key = f"kind '{kind.label}'", f"shapes.{declared.name}"
        raise ConfigError(where, key, "sizes that the model accepts", given)
    return TensorMetadata(declared.name, declared.datatype, shape)


def _read(kind: Kind, declared: Sequence[TensorMetadata]) -> list[Arrays]:
    path = Path(kind.inputs)
    if path.suffix == ".npz":
        arrays = _archive(path)
        _check_names(path, kind, declared, arrays)
        return [{each.name: _converted(path, each, arrays[each.name]) for each in declared if each.name in arrays}]
    samples = []
    for given in _objects(path):
        _check_names(path, kind, declared, given)
        samples.append({each.name: _from_json(path, each, given[each.name]) for each in declared if each.name in given})
    return samples


def _objects(path: Path) -> list[dict[str, Any]]:
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), "file", _EXPECTED_FILE, error.strerror or str(error)) from None
    except ValueError as error:
        raise ConfigError(str(path), "file", _EXPECTED_FILE, f"no JSON: {error}") from None
    objects = given if isinstance(given, list) else [given]
    if not objects or not all(isinstance(each, dict) for each in objects):
        raise ConfigError(str(path), "file", _EXPECTED_FILE, "another value")
    return objects


def _archive(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(str(path), "file", _EXPECTED_FILE, str(error) or type(error).__name__) from None


def _check_names(path: Path, kind: Kind, declared: Sequence[TensorMetadata], given: Mapping[str, Any]) -> None:
    names = [each.name for each in declared]
    for name in given:
        if name not in names:
            raise ConfigError(str(path), name, f"inputs of model '{kind.model}': {', '.join(names)}", f"'{name}'")
    if not given:
        raise ConfigError(str(path), "file", f"inputs of model '{kind.model}': {', '.join(names)}", "none")


def _from_json(path: Path, declared: TensorMetadata, data: Any) -> NDArray[Any]:
    try:
        _, dimensions = flatten(f"input '{declared.name}'", data)
        missing = max(0, len(declared.shape) - len(dimensions))
        return from_json(declared.name, declared.datatype, (*[1] * missing, *dimensions), data)
    except IsochroneError as error:
        raise ConfigError(str(path), declared.name, f"values of {declared.datatype}", str(error)) from None


def _converted(path: Path, declared: TensorMetadata, array: NDArray[Any]) -> NDArray[Any]:
    if declared.datatype == "BYTES":
        return array.astype(np.object_)
    if not np.can_cast(array.dtype, declared.dtype, "same_kind"):
        raise ConfigError(str(path), declared.name, declared.datatype, str(array.dtype))
    return np.ascontiguousarray(array.astype(declared.dtype))
