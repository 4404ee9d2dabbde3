"""Reads a scenario from YAML. What is wrong is told with file, line, key, what was expected and what was given."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import yaml

from isochrone.errors import ConfigError, IsochroneError
from isochrone.gateway.policies import NAMES, make
from isochrone.simulate.load.workloads import duration
from isochrone.simulate.scenario.records import PolicyChoice, Scenario, SharingWorkers

_AT = re.compile(r" - at `(?:key in )?\$(.*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_TYPE = re.compile(r"Expected `(.*)`, got `(.*)`")
_BOUND = re.compile(r"Expected (.*)")

#: A value is quoted up to here.
_QUOTED = 60


def read(path: Path) -> Scenario:
    """The scenario in a file."""
    where = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(where, "file", "a readable YAML file", error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise ConfigError(where, "file", "UTF-8 text", "bytes that are not") from None
    return parse(text, where)


def parse(text: str, where: str) -> Scenario:
    """The scenario in a text; ``where`` names it in errors."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{where}{line}", "file", "YAML", str(getattr(error, "problem", error))) from None
    if not isinstance(data, dict):
        raise ConfigError(where, "file", "a mapping with workload and workers", _quoted(data))
    try:
        scenario = msgspec.convert(data, Scenario)
    except msgspec.ValidationError as error:
        raise _explained(str(error), data, root, where) from None
    _check(scenario, root, where)
    return scenario


def _explained(message: str, data: Any, root: yaml.Node | None, where: str) -> ConfigError:
    """msgspec's sentence, as one of ours."""
    found = _AT.search(message)
    steps: list[str | int] = []
    if found:
        message = message[: found.start()]
        for name, index in _STEP.findall(found.group(1)):
            if index == "...":
                break
            steps.append(int(index) if index else name)
    if unknown := _UNKNOWN.fullmatch(message):
        return _error(root, where, [*steps, unknown.group(1)], "a key that exists here", unknown.group(1))
    if missing := _MISSING.fullmatch(message):
        return _error(root, where, [*steps, missing.group(1)], "a value", "nothing")
    value = data
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            break
    if wrong := _TYPE.fullmatch(message):
        expected = wrong.group(1).replace("`", "")
    elif bound := _BOUND.fullmatch(message):
        expected = bound.group(1).replace("`", "")
    elif steps and steps[-1] in ("kind", "model"):
        expected = f"a {steps[-1]} that exists"
    else:
        expected = message
    return _error(root, where, steps, expected, _quoted(value))


def _check(scenario: Scenario, root: yaml.Node | None, where: str) -> None:
    """What the parts' own types cannot say."""
    for index, choice in enumerate(scenario.choices):
        if problem := policy_problem(choice):
            expected, given = problem
            raise _error(root, where, ["policies", index], expected, given)
    for index, failure in enumerate(scenario.failures):
        for position, number in enumerate(failure.workers):
            if number >= scenario.worker_count:
                expected = f"a worker's number, at most {scenario.worker_count - 1}"
                raise _error(root, where, ["failures", index, "workers", position], expected, str(number))
    seconds = duration(scenario.workload, scenario.seconds)
    if scenario.warmup_seconds >= seconds:
        given = f"{scenario.warmup_seconds:g}"
        raise _error(root, where, ["warmup_seconds"], f"less than the run's {seconds:g} s", given)
    if scenario.antagonists is not None:
        for index, group in enumerate(scenario.workers):
            if not isinstance(group, SharingWorkers):
                raise _error(
                    root, where, ["workers", index, "model"], "sharing, since there are antagonists", "another"
                )


def policy_problem(choice: PolicyChoice) -> tuple[str, str] | None:
    """What is wrong with a policy's name or options: expected and given; None: nothing."""
    if choice.name not in NAMES:
        return f"one of {', '.join(NAMES)}", choice.name
    try:
        make(choice.name, Random(0), **choice.options)
    except ConfigError as error:
        return f"{error.key}: {error.expected}", error.given
    except (IsochroneError, TypeError) as error:
        return f"options of {choice.name}", f"{choice.options} ({error})"
    return None


def _error(root: yaml.Node | None, where: str, steps: list[str | int], expected: str, given: str) -> ConfigError:
    key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")
    return ConfigError(f"{where}:{_line(root, steps)}", key or "file", expected, given)


def _line(node: yaml.Node | None, steps: list[str | int]) -> int:
    """The line of a key, or of the innermost part of its path that is there."""
    line = 1 if node is None else node.start_mark.line + 1
    for step in steps:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(step):
                    line, node = key.start_mark.line + 1, value
                    break
            else:
                return line
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _QUOTED else text[:_QUOTED] + "…"
