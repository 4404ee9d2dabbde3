"""The settings of a divided model, from the ``parameters`` of its config.pbtxt, and its file of divisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isochrone.clock import MILLISECOND
from isochrone.errors import ConfigError
from isochrone.models.configuration.divided_models import division_models, probe_model
from isochrone.models.divisions import DIVISIONS_FILE, Divisions, read_divisions
from isochrone.worker.divided.replanning import ReplanRules

_LOOK_MS = 500
_PROBE_MS = 10_000


@dataclass(frozen=True, slots=True)
class DividedSettings:
    plan: Divisions
    rules: ReplanRules = field(default_factory=ReplanRules)
    #: Between two looks at link and times.
    look_ns: int = _LOOK_MS * MILLISECOND
    #: At least between two probes of the bandwidth.
    probe_ns: int = _PROBE_MS * MILLISECOND
    #: The remote model that measures the bandwidth; "": none.
    probe_model: str = ""


def divided_settings(config: Any, parameters: Mapping[str, str], directory: Path, where: str) -> DividedSettings:
    """``directory``: of the version. On a thread: reads a file."""
    file = directory / DIVISIONS_FILE
    try:
        plan = read_divisions(file.read_bytes(), str(file))
    except OSError as error:
        expected = "a file as isochrone partition --keep-memory writes it"
        raise ConfigError(str(file), "file", expected, error.strerror or str(error)) from None
    named, listed = {each.model for each in plan.divisions}, set(division_models(config))
    if named != listed:
        differing = ", ".join(sorted(named ^ listed))
        expected = f"the models of the divisions in {file}"
        raise ConfigError(where, 'parameters["models"]', expected, f"others; they differ in {differing}")
    default = ReplanRules()
    return DividedSettings(
        plan,
        ReplanRules(
            _share(parameters, "margin", default.margin, where),
            _whole(parameters, "looks", default.looks, where),
            _whole(parameters, "least_stay_ms", default.least_stay_ns // MILLISECOND, where, least=0) * MILLISECOND,
        ),
        _whole(parameters, "look_ms", _LOOK_MS, where, least=10) * MILLISECOND,
        _whole(parameters, "probe_ms", _PROBE_MS, where, least=100) * MILLISECOND,
        probe_model(config),
    )


def _whole(parameters: Mapping[str, str], key: str, default: int, where: str, least: int = 1) -> int:
    text = parameters.get(key, "").strip()
    if not text:
        return default
    if not text.isdigit() or int(text) < least:
        raise ConfigError(where, f'parameters["{key}"]', f"a whole number of at least {least}", repr(text))
    return int(text)


def _share(parameters: Mapping[str, str], key: str, default: float, where: str) -> float:
    text = parameters.get(key, "").strip()
    if not text:
        return default
    try:
        value = float(text)
        if not 0 <= value < 1:
            raise ValueError
    except ValueError:
        raise ConfigError(where, f'parameters["{key}"]', "a share such as 0.1, below 1", repr(text)) from None
    return value
