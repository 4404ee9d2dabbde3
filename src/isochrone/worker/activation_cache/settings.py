"""The activation cache's settings of one model: the parameters ``activation_cache…`` of its config.pbtxt.

They are read at load. A model that cannot have the cache is rejected there, and so is a key that is not known: a
misspelt threshold must not leave the default in force.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tritonclient.grpc import model_config_pb2

from isochrone.clock import MILLISECOND
from isochrone.errors import ConfigError
from isochrone.suggestions import suggestion
from isochrone.worker.activation_cache.planes import CHANNELS, LAYOUTS, WINDOW, Reduction

if TYPE_CHECKING:
    from isochrone.models.signature import Signature, TensorSpec

TEMPORAL, SPATIAL = "temporal", "spatial"

_PREFIX: Final = "activation_cache"
_KEYS: Final = (
    _PREFIX,
    *(
        f"{_PREFIX}_{name}"
        for name in (
            "similarity",
            "block_similarity",
            "bytes",
            "age_ms",
            "error_budget",
            "sample_share",
            "layout",
            "range",
            "side",
            "grid",
        )
    ),
)
#: Data types of pictures, and the range of their values if the configuration states none.
_RANGES: Final = {"UINT8": (0.0, 255.0), "FP16": (0.0, 1.0), "FP32": (0.0, 1.0)}
#: Channel counts by which a layout is guessed; those that are no picture's are rejected afterwards.
_GUESSED_CHANNELS: Final = (*CHANNELS, 4)
_FORMATS: Final = {
    model_config_pb2.ModelInput.FORMAT_NHWC: "HWC",
    model_config_pb2.ModelInput.FORMAT_NCHW: "CHW",
}


@dataclass(frozen=True, slots=True)
class ActivationSettings:
    """When one model's outputs may be reused."""

    #: The input that is the picture: the model's only one.
    input_name: str
    reduction: Reduction
    #: Of ``temporal`` and ``spatial``.
    scopes: tuple[str, ...] = (TEMPORAL, SPATIAL)
    #: The smallest SSIM to the key frame.
    similarity: float = 0.95
    #: The smallest mean of a block of windows: a mean over the whole picture hides a pedestrian. -1: not checked.
    block_similarity: float = 0.75
    #: Of outputs and key frames.
    limit_bytes: int = 64 << 20
    #: From the computation of the outputs. It bounds how long a change that planes do not show stays unseen.
    age_ns: int = 1000 * MILLISECOND
    #: The error of outputs that reuse may cause in the mean; more than 0, and less than 1, which is the largest error.
    error_budget: float = 0.1
    #: Of the hits, those that are computed nevertheless, to measure that error.
    sample_share: float = 0.01
    #: The size of a cell in each component of a pose; empty: poses are not used.
    grid: tuple[float, ...] = ()


def read_activation_settings(
    parameters: Mapping[str, str], config: Any, signature: Signature, where: str
) -> ActivationSettings | None:
    """None: the model has no activation cache. Raises ``ConfigError``."""
    given = {key: value.strip() for key, value in parameters.items() if key.startswith(_PREFIX)}
    for key in given:
        if key not in _KEYS:
            raise ConfigError(where, f'parameters["{key}"]', suggestion(key, _KEYS), "an unknown one")
    reader = _Reader(given, where)
    scopes = reader.scopes()
    if not scopes:
        if given.keys() - {_PREFIX}:
            reader.reject(_PREFIX, "temporal, spatial or temporal,spatial, since other keys set up the cache")
        return None
    _reject_unfit(config, reader)
    picture, layout = _picture(config, signature, reader)
    low, high = reader.range(_RANGES[picture.datatype])
    return ActivationSettings(
        picture.name,
        Reduction(layout, reader.integer("side", 48, 16, 96), low, high - low),
        scopes,
        similarity=reader.number("similarity", 0.95, 0.0, 1.0),
        block_similarity=reader.number("block_similarity", 0.75, -1.0, 1.0),
        limit_bytes=reader.integer("bytes", 64 << 20, 1, 1 << 40),
        age_ns=reader.integer("age_ms", 1000, 1, 86_400_000) * MILLISECOND,
        error_budget=reader.open_share("error_budget", 0.1),
        sample_share=reader.number("sample_share", 0.01, 0.0, 1.0),
        grid=reader.grid(),
    )


def _reject_unfit(config: Any, reader: _Reader) -> None:
    """The cache needs models whose answer follows from one picture alone, and answers that are exact."""
    if config.HasField("ensemble_scheduling"):
        reader.reject(_PREFIX, "none for an ensemble: set it in the configuration of the step's model")
    if config.model_transaction_policy.decoupled:
        reader.reject(_PREFIX, "none for a decoupled model, which may have any number of answers")
    if config.HasField("sequence_batching"):
        reader.reject(_PREFIX, "none for a model of sequences, whose answers depend on earlier requests")
    if config.response_cache.enable:
        reader.reject(_PREFIX, "none with response_cache.enable, which would keep reused answers as exact ones")
    if config.backend == "remote":
        # Its digest is that of the files here, and does not change with the version there.
        reader.reject(_PREFIX, "none for a remote model: set it in the configuration of the model there")
    if config.backend == "generation":
        reader.reject(_PREFIX, "none for a model that generates text")


def _picture(config: Any, signature: Signature, reader: _Reader) -> tuple[TensorSpec, str]:
    """The picture among the inputs, and its layout."""
    if len(signature.inputs) != 1:
        reader.reject(_PREFIX, f"none, since the model has {len(signature.inputs)} inputs: it needs one, a picture")
    picture = signature.inputs[0]
    if picture.datatype not in _RANGES:
        expected = f"none, since input '{picture.name}' is {picture.datatype}: a picture is {', '.join(_RANGES)}"
        reader.reject(_PREFIX, expected)
    stated = _FORMATS.get(config.input[0].format, "") if len(config.input) == 1 else ""
    dims = picture.dims
    if len(dims) == 4 and dims[0] in (1, -1):
        # A batch dimension of the model's own.
        dims = dims[1:]
    layout = reader.text("layout").upper() or stated or _guessed_layout(dims)
    shown = f"dims {list(picture.dims)} of '{picture.name}'"
    if layout not in LAYOUTS:
        reader.reject(f"{_PREFIX}_layout", f"one of {', '.join(LAYOUTS)}, since {shown} do not say it")
    if len(dims) != len(layout):
        reader.reject(f"{_PREFIX}_layout", f"a layout of {len(dims)} axes, since {shown} are of a picture", layout)
    for axis, length in zip(layout, dims, strict=True):
        if axis == "C" and length not in (*CHANNELS, -1):
            reader.reject(f"{_PREFIX}_layout", f"a layout whose C is 1 or 3 channels, given {shown}", layout)
        if axis != "C" and 0 <= length < WINDOW:
            reader.reject(f"{_PREFIX}_layout", f"a layout whose H and W are {WINDOW} or more, given {shown}", layout)
    return picture, layout


def _guessed_layout(dims: tuple[int, ...]) -> str:
    """Empty: the dims do not say it."""
    if len(dims) == 2:
        return "HW"
    if len(dims) != 3:
        return ""
    first, last = dims[0] in _GUESSED_CHANNELS, dims[-1] in _GUESSED_CHANNELS
    return "" if first == last else "CHW" if first else "HWC"


class _Reader:
    """Typed access to the parameters; errors name the file, the key, the expected and the given value."""

    def __init__(self, given: Mapping[str, str], where: str) -> None:
        self._given = given
        self._where = where

    def text(self, name: str) -> str:
        return self._given.get(f"{_PREFIX}_{name}", "")

    def reject(self, key: str, expected: str, given: str | None = None) -> NoReturn:
        text = self._given.get(key, "") if given is None else given
        raise ConfigError(self._where, f'parameters["{key}"]', expected, repr(text))

    def scopes(self) -> tuple[str, ...]:
        words = [word.strip() for word in self._given.get(_PREFIX, "").lower().split(",") if word.strip()]
        if words == ["none"]:
            return ()
        for word in words:
            if word not in (TEMPORAL, SPATIAL):
                self.reject(_PREFIX, "temporal, spatial, temporal,spatial or none")
        return tuple(scope for scope in (TEMPORAL, SPATIAL) if scope in words)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        numbers = self._numbers(name, 1, f"a number from {low:g} to {high:g}")
        value = numbers[0] if numbers else default
        if not low <= value <= high:
            self.reject(f"{_PREFIX}_{name}", f"a number from {low:g} to {high:g}")
        return value

    def open_share(self, name: str, default: float) -> float:
        value = self.number(name, default, 0.0, 1.0)
        if value in (0.0, 1.0):
            self.reject(f"{_PREFIX}_{name}", "a number greater than 0 and less than 1")
        return value

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        text = self.text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 15 and low <= int(text) <= high):
            self.reject(f"{_PREFIX}_{name}", f"a whole number from {low} to {high}")
        return int(text)

    def range(self, default: tuple[float, float]) -> tuple[float, float]:
        expected = "the smallest and the largest value of a picture, as in 0,255 or -2.2,2.7"
        numbers = self._numbers("range", 2, expected)
        if not numbers:
            return default
        low, high = numbers
        if low >= high:
            self.reject(f"{_PREFIX}_range", expected)
        return low, high

    def grid(self) -> tuple[float, ...]:
        expected = "the size of a cell in each component of a pose, as in 5,5,30"
        numbers = self._numbers("grid", 0, expected)
        if any(number <= 0 for number in numbers) or len(numbers) > 16:
            self.reject(f"{_PREFIX}_grid", expected)
        return numbers

    def _numbers(self, name: str, count: int, expected: str) -> tuple[float, ...]:
        """Finite numbers between commas; ``count`` 0: any number of them. Empty: not given."""
        text = self.text(name)
        if not text:
            return ()
        try:
            numbers = tuple(float(part) for part in text.split(","))
        except ValueError:
            numbers = ()
        if not numbers or (count and len(numbers) != count) or not all(map(math.isfinite, numbers)):
            self.reject(f"{_PREFIX}_{name}", expected)
        return numbers
