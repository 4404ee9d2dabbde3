"""The reader of scenario files (YAML). Errors name file, line, key, expected value and given value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from isochrone.errors import ConfigError, IsochroneError
from isochrone.gateway.policies import NAMES, make
from isochrone.settings.documents import as_mapping, parse_document, read_text
from isochrone.settings.problems import Problem, settings_error
from isochrone.settings.sections import read_section
from isochrone.simulate.load.workloads import duration
from isochrone.simulate.scenario.records import PolicyChoice, Scenario, SharingWorkers
from isochrone.suggestions import suggestion


def read(path: Path) -> Scenario:
    """The scenario in a file; raises ``SettingsError`` with all its errors."""
    return parse(read_text(path, "a readable YAML file"), str(path))


def parse(text: str, where: str) -> Scenario:
    """The scenario in a text; ``where`` names it in errors."""
    document = parse_document(text, where)
    as_mapping(document, "a mapping with workload and workers")
    scenario = read_section(Scenario, document)
    if problems := list(_problems(scenario)):
        raise settings_error(problems, where, document.lines)
    return scenario


def _problems(scenario: Scenario) -> Iterator[Problem]:
    """Errors that the types of the parts cannot express."""
    for index, choice in enumerate(scenario.policies):
        if problem := policy_problem(choice):
            yield Problem(("policies", index), *problem)
    for index, failure in enumerate(scenario.failures):
        for position, number in enumerate(failure.workers):
            if number >= scenario.worker_count:
                expected = f"a worker's number, at most {scenario.worker_count - 1}"
                yield Problem(("failures", index, "workers", position), expected, str(number))
    seconds = duration(scenario.workload, scenario.seconds)
    if scenario.warmup_seconds >= seconds:
        given = f"{scenario.warmup_seconds:g}"
        yield Problem(("warmup_seconds",), f"less than the run's {seconds:g} s", given)
    if scenario.antagonists is not None:
        for index, group in enumerate(scenario.workers):
            if not isinstance(group, SharingWorkers):
                yield Problem(("workers", index, "model"), "sharing, since there are antagonists", group.model)


def policy_problem(choice: PolicyChoice) -> tuple[str, str] | None:
    """The error of a policy's name or options, as expected and given value."""
    if choice.name not in NAMES:
        return suggestion(choice.name, NAMES, "policy"), choice.name
    try:
        make(choice.name, Random(0), **choice.options)
    except ConfigError as error:
        return f"{error.key}: {error.expected}", error.given
    except (IsochroneError, TypeError) as error:
        return f"options of {choice.name}", f"{choice.options} ({error})"
    return None
