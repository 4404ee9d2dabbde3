"""Post-training quantization by onnxruntime: every variant that it has for static INT8, and 4-bit weights."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static

_CALIBRATIONS = {
    "MinMax": (CalibrationMethod.MinMax, {}),
    "Entropy": (CalibrationMethod.Entropy, {}),
    "Percentile 99.999": (CalibrationMethod.Percentile, {}),
    # Below the default: signals of many gains have a long tail, and cutting it off helps.
    **{
        f"Percentile {share}": (CalibrationMethod.Percentile, {"CalibPercentile": share})
        for share in (99.9, 99.5, 99, 98, 96)
    },
}
_CALIBRATION_ROWS = 1024


class _Rows(CalibrationDataReader):
    def __init__(self, rows: np.ndarray) -> None:
        self._parts = iter(np.array_split(rows[:_CALIBRATION_ROWS], 16))

    def get_next(self) -> dict[str, np.ndarray] | None:
        part = next(self._parts, None)
        return None if part is None else {"input": part}


def int8_variants(model: Path, rows: np.ndarray, directory: Path) -> Iterator[tuple[str, Path]]:
    """A file for each calibration, with one scale per channel and per tensor."""
    for name, (method, options) in _CALIBRATIONS.items():
        for per_channel in (True, False):
            path = directory / f"{name.replace(' ', '-')}-{per_channel}.onnx"
            _quantize(model, path, rows, QuantType.QInt8, per_channel, method, options)
            yield f"{name}, per {'channel' if per_channel else 'tensor'}", path


def int4_variants(model: Path, rows: np.ndarray, directory: Path) -> Iterator[tuple[str, Path]]:
    """The same with 4-bit weights, one scale per channel."""
    for name, (method, options) in _CALIBRATIONS.items():
        path = directory / f"{name.replace(' ', '-')}-int4.onnx"
        _quantize(model, path, rows, QuantType.QInt4, True, method, options)
        yield name, path


def _quantize(model, path, rows, weights, per_channel, method, options) -> None:
    # It prints its progress, and warns that the model was not preprocessed: there is nothing to fuse in it.
    logging.getLogger().setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()):
        quantize_static(
            model,
            path,
            _Rows(rows),
            per_channel=per_channel,
            calibrate_method=method,
            activation_type=QuantType.QUInt8,
            weight_type=weights,
            extra_options=options,
        )
