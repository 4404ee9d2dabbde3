"""Reads the weights of a Hugging Face folder: model.safetensors, or shards that model.safetensors.index.json names.

``open_checkpoint`` checks every name and shape before a single weight is read. Nothing here reads pickles: reading one
runs the code in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isochrone.errors import ConfigError
from isochrone.worker.backends.transformer.checkpoint.fields import Fields, read_fields
from isochrone.worker.backends.transformer.checkpoint.shape import DecoderShape, expected_tensors, shape_of

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt")
#: As safetensors names them.
_DATATYPES = ("F32", "BF16", "F16")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose files fit each other."""

    directory: Path
    config: Fields
    shape: DecoderShape
    #: Of the names of tensors: "model." or "transformer.", or nothing.
    prefix: str
    #: The name of a tensor → its file.
    files: dict[str, Path]

    @contextmanager
    def tensors(self, safetensors: Any, device: str) -> Iterator[Any]:
        """A function from the name of a tensor to the tensor on ``device``."""
        with ExitStack() as stack:
            opened = {
                path: stack.enter_context(safetensors.safe_open(str(path), framework="pt", device=device))
                for path in set(self.files.values())
            }
            yield lambda name: opened[self.files[name]].get_tensor(name)


def open_checkpoint(safetensors: Any, directory: Path) -> Checkpoint:
    config = read_fields(directory / "config.json", required=True)
    shape = shape_of(config)
    places = _places(safetensors, directory)
    prefix = _prefix(shape, places)
    expected = expected_tensors(shape, prefix)
    _check(safetensors, directory, expected, places)
    return Checkpoint(directory, config, shape, prefix, {name: places[name] for name in expected})


def _places(safetensors: Any, directory: Path) -> dict[str, Path]:
    """The names of all tensors and their files."""
    single, index = directory / _SINGLE, directory / _INDEX
    if single.is_file():
        return dict.fromkeys(_header(safetensors, single), single)
    if index.is_file():
        return _shards(read_fields(index, required=True), directory)
    pickles = [name for name in _PICKLES if (directory / name).exists()]
    given = f"{pickles[0]}, which is a pickle: convert it with safetensors" if pickles else "neither"
    raise ConfigError(str(directory), "weights", f"{_SINGLE} or {_INDEX}", given)


def _shards(index: Fields, directory: Path) -> dict[str, Path]:
    named = index.get("weight_map")
    if not isinstance(named, dict) or not named:
        index.reject("weight_map", "an object of tensor names and file names")
    places = {}
    for tensor, name in named.items():
        # A plain name: a path could lead out of the folder.
        if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name or "\\" in name:
            index.reject(f"weight_map.{tensor}", "the name of a file in the same folder", name)
        if not name.endswith(".safetensors"):
            index.reject(f"weight_map.{tensor}", "a file that ends in .safetensors", name)
        places[str(tensor)] = directory / name
    for path in sorted(set(places.values())):
        if not path.is_file():
            index.reject("weight_map", "files that exist", path.name)
    return places


def _header(safetensors: Any, path: Path) -> list[str]:
    try:
        with safetensors.safe_open(str(path), framework="pt", device="cpu") as opened:
            return list(opened.keys())
    except Exception as error:
        raise ConfigError(str(path), "file", "a safetensors file", str(error)) from error


def _prefix(shape: DecoderShape, places: dict[str, Path]) -> str:
    """GPT-2 is published with and without the prefix of its names."""
    if shape.is_gpt2:
        return "transformer." if "transformer.wte.weight" in places else ""
    return "model."


def _check(safetensors: Any, directory: Path, expected: dict[str, tuple[int, ...]], places: dict[str, Path]) -> None:
    """Every expected tensor is where it should be, with its shape and a floating-point type."""
    for name in expected:
        if name not in places:
            raise ConfigError(
                str(directory), name, "a tensor of this name in the weights, as config.json needs", "none"
            )
    for path in sorted({places[name] for name in expected}):
        held = set(_header(safetensors, path))
        with safetensors.safe_open(str(path), framework="pt", device="cpu") as opened:
            for name, sizes in expected.items():
                if places[name] != path:
                    continue
                if name not in held:
                    raise ConfigError(str(path), name, f"the tensor, as {_INDEX} says", "none of this name")
                found = opened.get_slice(name)
                given, datatype = tuple(found.get_shape()), str(found.get_dtype())
                if given != sizes:
                    raise ConfigError(str(path), name, f"shape {list(sizes)}, as config.json says", str(list(given)))
                if datatype not in _DATATYPES:
                    raise ConfigError(str(path), name, f"one of {', '.join(_DATATYPES)}", datatype)
